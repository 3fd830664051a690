"""DropConnect: Wan et al. 2013; the scaling by 1/(1 − p) is ours."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rlplast.core.fast.linear import Linear
from rlplast.core.method.install import as_kind, check_kind, kind_of, put
from rlplast.core.method.method import method
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.validation import Fraction, Names
from rlplast.methods.dropping import Dropping, dropped

__all__ = ["DropConnect"]


class _Connected(nn.Module):
    """A layer that drops entries of its weight."""

    weight: Tensor
    method: "DropConnect"
    seed: int

    def connected(self) -> Tensor:
        """Return the weight, dropped if the layer drops now."""
        updates = self.method.seen(self)
        if updates is None:
            return self.weight
        return dropped(self.weight, self.method.p, updates, self.seed)


class DropConnectLinear(_Connected, Linear):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A linear layer that drops entries of its weight."""

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input, self.connected(), self.bias)


class DropConnectConv2d(_Connected, nn.Conv2d):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A conv that drops entries of its kernels, the same at every place."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.connected(), self.bias)


class DropConnectStackedLinear(_Connected, StackedLinear):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The members of an ensemble, each with entries of its own dropped."""

    def affine(self, x: Tensor, weight: Tensor) -> Tensor:
        return super().affine(x, self.connected())


_SWAPS: dict[type[nn.Module], type[Any]] = {
    nn.Linear: DropConnectLinear,
    nn.Conv2d: DropConnectConv2d,
    StackedLinear: DropConnectStackedLinear,
}


@method("dropconnect", key="layers", source="Wan et al. 2013; the scaling is ours")
@dataclass(frozen=True)
class DropConnect(Dropping):
    """Set single weights to 0 at random in training: DropConnect.

    Each layer that reads hidden units computes with W ∘ M/(1 − p), where M is 0 for a share `p` of
    the entries, the same for the whole batch, another one after each update. Its bias is
    untouched. It drops where `dropout` does, else it computes with W.

    Attributes:
        p: the share.
        layers: names or globs of the layers that drop, whatever they read; None: those that read
            hidden units.
    """

    p: Fraction = 0.1
    layers: Names | None = None

    def check_layer(self, path: str, layer: nn.Module) -> None:
        """Refuse layers of other classes, which may compute something else."""
        check_kind(layer, _SWAPS, f"{self.name}: {path}")

    def drop_in(self, model: nn.Module, path: str, seed: int) -> nn.Module:
        """Put a layer that drops in place of a plain one."""
        layer = model.get_submodule(path)
        new = as_kind(layer, _SWAPS[kind_of(layer)])
        new.method, new.seed = self, seed
        put(model, layer, new)
        return new
