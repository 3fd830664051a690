"""Unit features, output feature normalization (OFN): Hussing et al. 2024 (arXiv:2403.05996)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.method import Method, Network, method
from rlplast.core.network.order import last_layers
from rlplast.core.network.stacked import StackedLinear
from rlplast.methods.rescaling import NORMALISED_INPUT
from rlplast.metrics.ranks import at_least_float32

__all__ = ["UnitFeatures"]


def _scaled(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a layer's inputs, of which the first is x/‖x‖ along the last dimension; 0 stays 0."""
    x, *others = args
    wide = at_least_float32(x)
    square = wide.square().sum(-1, keepdim=True)
    return (wide * torch.where(square > 0, square, 1.0).rsqrt()).to(x.dtype), *others


@method("unit_features", key="layers", source="Hussing et al. 2024, arXiv:2403.05996")
@dataclass(frozen=True)
class UnitFeatures(Method):
    """Scale the last hidden features to length 1 before the head: OFN.

    The network's last linear layers read φ/‖φ‖ for φ, of each sample, and of each member of a
    stacked critic, alone. A φ of zeros stays 0 and gets its gradient unscaled; there is no ε.
    Activations for metrics and for methods are those before the scaling.
    """

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Let every head scale its input; return their paths."""
        network = Network("model", model)
        heads = {p: layer for p, layer in model.named_modules() if p in last_layers(network)}
        if not heads:
            raise NothingToEdit(f"unit_features finds no head in a {type(model).__name__}")
        for block in network.blocks:
            for alias in block.aliases:
                if alias.rpartition(".")[0] in heads:
                    raise ConfigError(
                        f"unit_features: the head's {alias} is tied to {block.name}: outputs could "
                        "be no larger than an embedding"
                    )
        for path, layer in heads.items():
            if not isinstance(layer, nn.Linear | StackedLinear):
                raise ConfigError(
                    f"unit_features: the head {path} is a {type(layer).__name__}: allowed are "
                    "Linear, StackedLinear"
                )
            if hasattr(layer, NORMALISED_INPUT):
                raise ConfigError(f"unit_features: {path} scales its input already")
        for layer in heads.values():
            layer.register_forward_pre_hook(_scaled)
            vars(layer)[NORMALISED_INPUT] = True
        return list(heads)
