"""CReLU: Shang et al. 2016; Abbas et al. 2023 for plasticity."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, method
from rlplast.core.rng import derive_seed
from rlplast.methods.joining import find_joins, halve, mark, widen

__all__ = ["CReLU"]


def _both_signs(dim: int, layer: nn.Module, args: Any, z: Tensor) -> Tensor:
    return torch.cat([z, -z], dim)


@method("crelu", key="layers", source="Shang et al. 2016; Abbas et al. 2023")
@dataclass(frozen=True)
class CReLU(Method):
    """Pass on the positive and the negative part of every hidden unit: CReLU.

    What a layer with hidden units gives to its ReLU (after a norm in between) becomes cat[z, −z],
    on the last axis, or on the channels of a conv. Hidden layers without a ReLU are refused by
    name. Units of such layers have no columns of their own: methods that act on units find none.

    Attributes:
        width: ``halve``: each layer keeps the first half of its rows, so that nothing else
            changes its size; ``double``: its readers get twice the inputs, with new weights.
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
            model.get_submodule(join.point.path).register_forward_hook(
                partial(_both_signs, join.dim)
            )
            mark(join, self.name)
            if self.width == "halve":
                halve(join.layer)
            for path, reader in join.readers.items() if self.width == "double" else ():
                widen(reader, derive_seed(seed, path))
        return [join.path for join in joins]
