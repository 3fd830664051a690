"""Metrics of units that live and sleep.

- `awake_fraction`: how many units of lifecycle layers are awake.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register

__all__ = ["awake_fraction"]


@register("metrics", "awake_fraction", source="Lifecycle paper (Yang), Algorithm 1: mean of a")
def awake_fraction(active: Mapping[str, Tensor]) -> Tensor:
    """Share of awake units among all units of all lifecycle layers.

    A unit that is warming up counts as awake. Large layers weigh more: this is no mean of layer
    fractions.

    Args:
        active: by layer, 1 where a unit is awake and 0 where it sleeps, of any shape.

    Returns:
        0-d float64 tensor in ``[0, 1]``.

    Raises:
        ConfigError: if there are no layers.

    Examples:
        >>> active = {"fc1": torch.tensor([1, 0]), "fc2": torch.tensor([1, 1])}
        >>> awake_fraction(active).item()
        0.75
    """
    if not active:
        raise ConfigError("awake_fraction: there are no lifecycle layers")
    awake = torch.stack([layer.sum() for layer in active.values()]).sum()
    return awake.double() / sum(layer.numel() for layer in active.values())
