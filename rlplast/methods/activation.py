"""Activation: other nonlinearities in hidden layers.

Source: Abbas et al. 2023 (leaky ReLU); Clevert et al. 2016 (ELU); Lillo & Cheney 2026,
arXiv:2509.22562 (Smooth-Leaky); Molina et al. 2020 and Delfosse et al. 2024 (rational functions).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, method
from rlplast.core.network.blocks import BlockSpec
from rlplast.methods.replacing import replace_nonlinearity, replaceable
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Activation", "Rational", "SmoothLeaky"]

Kind = Literal["leaky_relu", "smooth_leaky", "elu", "rational"]
ALPHAS = {"leaky_relu": 0.01, "smooth_leaky": 0.1, "elu": 1.0}
SHARPNESS = 5 / 3  # c/p of Smooth-Leaky
# Nearest to leaky ReLU with slope 0.01 on [−3, 3] by least squares: 0.034 away at most.
NUMERATOR = (0.033563, 0.505, 1.653176, 2.009367, 0.931452, 0.152326)
DENOMINATOR = (0.0, 3.978945, 0.0, 0.301635)


class SmoothLeaky(nn.Module):
    """αx + (1 − α)·x·sigmoid(5x/3): leaky ReLU without a kink.

    Args:
        alpha: α, the slope far below 0.
    """

    acts_alone = True

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the nonlinearity of each entry."""
        return x * (self.alpha + (1 - self.alpha) * torch.sigmoid(SHARPNESS * x))


class Rational(nn.Module):
    """Σ aⱼxʲ / (1 + |Σ bₖxᵏ|), j = 0…5, k = 1…4, whose coefficients train: a safe Padé unit.

    Attributes:
        numerator: a, (6,), or (members, 6).
        denominator: b, (4,), or (members, 4).

    Args:
        like: a layer's weight, on whose device and in whose precision they are.
        members: of a stacked layer, whose outputs are (members, …); 0 for others.
    """

    acts_alone = True
    starts: ClassVar[Mapping[str, Sequence[float]]] = {
        "numerator": NUMERATOR,
        "denominator": DENOMINATOR,
    }

    def __init__(self, like: Tensor, members: int = 0) -> None:
        super().__init__()
        self.members = members
        for name, start in self.starts.items():
            value = like.new_tensor(start)
            value = value.expand(members, -1).clone() if members else value
            self.register_parameter(name, nn.Parameter(value, like.requires_grad))

    def block_specs(self) -> list[BlockSpec]:
        """Return two Blocks, or two per member."""
        if not self.members:
            return [BlockSpec(name, "other", "other") for name in self.starts]
        return [
            BlockSpec(name, "other", "other", member=i, index=(i,))
            for i in range(self.members)
            for name in self.starts
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Return the nonlinearity of each entry, computed in at least float32."""
        wide = at_least_float32(x)
        a, b = (self._spread(name, x.ndim) for name in self.starts)
        above, below = a[-1], b[-1]
        for coefficient in reversed(a[:-1]):
            above = above * wide + coefficient
        for coefficient in reversed(b[:-1]):
            below = below * wide + coefficient
        return (above / (1 + (below * wide).abs())).to(x.dtype)

    def _spread(self, name: str, ndim: int) -> Sequence[Tensor]:
        """Return the coefficients one by one, each to be multiplied with x."""
        values = at_least_float32(getattr(self, name)).unbind(-1)
        return [v.view(-1, *(1,) * (ndim - 1)) for v in values] if self.members else values


@method(
    "activation", key="layers", source="Lillo & Cheney 2026; Delfosse et al. 2024; see the card"
)
@dataclass(frozen=True)
class Activation(Method):
    """Replace the nonlinearity of every hidden layer.

    A nonlinearity that is a module of its own (``nn.ReLU``) is replaced, and so are those of this
    library's networks; a function in somebody's ``forward``, and a module used in several places,
    are refused by name. Layers without hidden units keep theirs: the sums of a ResNet's stream.
    Weights, biases, norm layers, heads and optimizer state are untouched; followers get the same.
    The coefficients of ``rational`` are parameters, one set per layer and member: they train,
    decay, and go back to where they began with a reset.

    Attributes:
        kind: ``leaky_relu``: αx below 0. ``smooth_leaky``: αx + (1 − α)·x·sigmoid(5x/3). ``elu``:
            α(eˣ − 1) below 0. ``rational``: a quotient of polynomials of degrees 5 and 4 that
            learns, and begins as leaky ReLU.
        alpha: α; None: 0.01 of leaky_relu, 0.1 of smooth_leaky, 1 of elu. rational has none.
    """

    kind: Kind = "leaky_relu"
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse an α without effect.

        Raises:
            ConfigError: for one of ``rational``.
        """
        if self.kind == "rational" and self.alpha is not None:
            raise ConfigError(
                f"activation.alpha = {self.alpha}: rational has no alpha; allowed is null"
            )

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Replace the nonlinearities in place; return the paths of their layers.

        Raises:
            NothingToEdit: if there is none.
            ConfigError: for one that cannot be replaced, or is by a method already.
        """
        places = replaceable(model, self.name)
        for path, place in places.items():
            new = self._made(model.get_submodule(path))
            replace_nonlinearity(model, path, place, new, self.name)
        return list(places)

    def _made(self, layer: nn.Module) -> nn.Module:
        if self.kind == "rational":
            return Rational(layer.get_parameter("weight"), getattr(layer, "members", 0))
        kinds = {"leaky_relu": nn.LeakyReLU, "smooth_leaky": SmoothLeaky, "elu": nn.ELU}
        return kinds[self.kind](ALPHAS[self.kind] if self.alpha is None else self.alpha)
