"""CReLU: every unit gives its positive and its negative part.

Source: Shang et al. 2016; Abbas et al. 2023 for plasticity.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, method
from rlplast.core.rng import derive_seed
from rlplast.methods.joining import find_joins, halve, mark, widen

__all__ = ["CReLU"]


class BothSigns:
    """Makes z into cat[z, −z]; a forward hook.

    Args:
        dim: the dimension of the units.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, layer: nn.Module, args: Any, z: Tensor) -> Tensor:
        return torch.cat([z, -z], self.dim)


@method("crelu", key="layers", source="Shang et al. 2016; Abbas et al. 2023")
@dataclass(frozen=True)
class CReLU(Method):
    """Pass on the positive and the negative part of every hidden unit: CReLU.

    What a layer with hidden units gives to the ReLU after it (after a norm in between, if there is
    one before the ReLU) becomes cat[z, −z], on the last axis, or on the channels of a conv. So no
    unit is silent for all inputs. All hidden layers must have a ReLU; others are refused by name.
    Heads, residual streams, norm layers, optimizer state are untouched; followers get the same.
    Units of such layers have no columns of their own: methods that act on units find none there.

    Attributes:
        width: ``halve``: each layer keeps the first half of its rows, so that nothing else
            changes its size; ``double``: the layers that read it get twice the inputs, with new
            weights.
    """

    width: Literal["halve", "double"] = "halve"

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Change every layer with hidden units; return their paths."""
        joins = find_joins(model, self.name, self.width == "halve")
        for join in joins:
            if join.nonlinearity != "relu":
                raise ConfigError(
                    f"crelu: {join.path} has the nonlinearity {join.nonlinearity}: allowed is relu"
                )
        for join in joins:
            model.get_submodule(join.point.path).register_forward_hook(BothSigns(join.dim))
            mark(join, self.name)
            if self.width == "halve":
                halve(join.layer)
            for path, reader in join.readers.items() if self.width == "double" else ():
                widen(reader, derive_seed(seed, path))
        return [join.path for join in joins]
