"""Deep Fourier features: Lewandowski et al. 2024."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlplast.core.method.method import Method, method
from rlplast.core.network.unit_search import JOINED
from rlplast.methods.joining import axis_of, check_halves, halve
from rlplast.methods.replacing import replace_nonlinearity, replaceable

__all__ = ["DeepFourier"]


class FourierFeatures(nn.Module):
    """Deep Fourier features in place of a nonlinearity, on dimension `dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z.sin(), z.cos()], self.dim)


@method("deep_fourier", key="layers", source="Lewandowski et al. 2024")
@dataclass(frozen=True)
class DeepFourier(Method):
    """Replace every nonlinearity by cat[sin z, cos z] of half as many units.

    Each layer with hidden units keeps the first half of its rows, so that its readers keep their
    size. A nonlinearity is a module of its own (``nn.ReLU``), or that of one of this library's
    networks; others, and a norm before one, are refused by name. Units of such layers have no
    columns of their own: methods that act on units find none.
    """

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Change every layer with hidden units; return their paths."""
        groups = replaceable(model, self.name)
        check_halves(model, groups, self.name)
        for path, group in groups.items():
            layer = model.get_submodule(path)
            halve(layer)
            vars(layer)[JOINED] = self.name
            replace_nonlinearity(model, group, FourierFeatures(axis_of(group)), self.name)
        return list(groups)
