"""Dropout of hidden units: Srivastava et al. 2014."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import method
from rlplast.core.validation import Fraction, Names
from rlplast.methods.dropping import Dropping, dropped

__all__ = ["Dropout", "UnitDropout"]


class UnitDropout(Dropping):
    """Dropout at a rate that may depend on how many updates there were."""

    def rate(self, updates: Tensor) -> float | Tensor:
        """Return the share that is dropped."""
        raise NotImplementedError

    def check_layer(self, path: str, layer: nn.Module) -> None:
        """Refuse attention, which has three inputs."""
        if isinstance(layer, nn.MultiheadAttention):
            raise ConfigError(
                f"{self.name}: {path}, which reads hidden units, is a {type(layer).__name__} and "
                "has a dropout of its own: allowed are linear and conv layers"
            )

    def drop_in(self, model: nn.Module, path: str, seed: int) -> nn.Module:
        """Let a layer drop its input."""
        layer = model.get_submodule(path)
        layer.register_forward_pre_hook(partial(_drop_input, self, seed))
        return layer


def _drop_input(
    method: UnitDropout, seed: int, layer: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    updates = method.seen(layer)
    if updates is None:
        return args
    return dropped(args[0], method.rate(updates), updates, seed), *args[1:]


@method("dropout", key="layers", source="Srivastava et al. 2014")
@dataclass(frozen=True)
class Dropout(UnitDropout):
    """Set hidden units to 0 at random in training: dropout.

    Each layer that reads hidden units reads a share `p` of its inputs, chosen for each sample
    alone, as 0 and the others divided by 1 − p. Layers that read the same units drop the same
    ones. It drops in training mode where gradients are recorded, so not in target networks,
    acting and evaluation; all such forward passes of one update draw alike (ours).

    Attributes:
        p: the share.
        layers: names or globs of the layers that drop, whatever they read; None: those that read
            hidden units.
    """

    p: Fraction = 0.1
    layers: Names | None = None

    def rate(self, updates: Tensor) -> float:
        """Return p."""
        return self.p
