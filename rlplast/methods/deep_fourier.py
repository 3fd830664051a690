"""Deep Fourier features: Lewandowski et al. 2024."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.install import put
from rlplast.core.method.method import Method, method
from rlplast.core.network.units import NONLINEARITY
from rlplast.methods.joining import find_joins, halve, mark

__all__ = ["DeepFourier"]


def _fourier(dim: int, z: Tensor) -> Tensor:
    return torch.cat([z.sin(), z.cos()], dim)


class FourierFeatures(nn.Module):
    """Deep Fourier features in place of a nonlinearity, on dimension `dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, z: Tensor) -> Tensor:
        return _fourier(self.dim, z)


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
        joins = find_joins(model, self.name, halves=True)
        for join in joins:
            if join.point.nonlinearity is None:
                raise ConfigError(
                    f"deep_fourier: {join.path} has the nonlinearity {join.nonlinearity} as a "
                    "function, or as a module that others use: give it a module of its own, such "
                    "as nn.ReLU()"
                )
        for join in joins:
            halve(join.layer)
            mark(join, self.name)
            if join.point.nonlinearity:
                old = model.get_submodule(join.point.nonlinearity)
                put(model, old, FourierFeatures(join.dim))
            else:
                vars(join.layer)[NONLINEARITY] = partial(_fourier, join.dim)
        return [join.path for join in joins]
