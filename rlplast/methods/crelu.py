"""CReLU: Shang et al. 2016; Abbas et al. 2023 for plasticity."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, method
from rlplast.core.network.unit_search import JOINED
from rlplast.core.rng import derive_seed
from rlplast.methods.joining import axis_of, check_halves, check_readers, halve, readers_of, widen
from rlplast.methods.replacing import nonlinear

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
        groups, halves = nonlinear(model, self.name), self.width == "halve"
        (check_halves if halves else check_readers)(model, groups, self.name)
        for path, group in groups.items():
            if group.nonlinearity != "relu":
                raise ConfigError(
                    f"crelu: {path} has the nonlinearity {group.nonlinearity}: allowed is relu"
                )
        for path, group in groups.items():
            layer = model.get_submodule(path)
            vars(layer)[JOINED] = self.name
            anchor = layer if group.point is None else model.get_submodule(group.point.path)
            anchor.register_forward_hook(partial(_both_signs, axis_of(group)))
            if halves:
                halve(layer)
                continue
            for name, reader in readers_of(model, group).items():
                widen(reader, derive_seed(seed, name))
        return list(groups)
