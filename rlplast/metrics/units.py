"""Metrics of single units."""

from collections.abc import Mapping

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register
from rlplast.metrics.ranks import at_least_float32

__all__ = ["awake_fraction", "gradient_score", "grama_share", "unit_age"]


@register("metrics", "awake_fraction", source="Lifecycle paper (Yang), Algorithm 1: mean of a")
def awake_fraction(active: Mapping[str, Tensor]) -> Tensor:
    """Share of awake units among all units of all lifecycle layers.

    `active` is 1 where a unit is awake or warming up, and 0 where it sleeps. Large layers weigh
    more: this is not the mean of the layers' fractions.
    """
    if not active:
        raise ConfigError("awake_fraction: there are no lifecycle layers")
    awake = torch.stack([layer.sum() for layer in active.values()]).sum()
    return awake.double() / sum(layer.numel() for layer in active.values())


def gradient_score(gradient: Tensor) -> Tensor:
    """Return G_i of each unit of a layer: mean |∂L/∂w| of its weights over the layer's mean.

    Scaling the loss leaves it as it is. In a layer without any gradient it is 0. The gradient is
    that of the layer's incoming weight, a row per unit.
    """
    size = at_least_float32(gradient).abs().flatten(1).mean(1)
    return size / size.mean().clamp(min=torch.finfo(size.dtype).tiny)


@register(
    "metrics",
    "grama_share",
    source="GraMa (arXiv:2505.24061), equation 2, with the gradients of its code",
)
def grama_share(gradients: Mapping[str, Tensor], *, threshold: NonNegativeFloat = 0.01) -> Tensor:
    """Share of hidden units with almost no gradient, among all units of all layers.

    A unit's score is the mean |gradient| of its incoming weights (a row per unit), divided by the
    mean of that over its layer. It counts if it is at most the threshold. Large layers weigh more:
    this is not the mean of the layers' shares. The value is NaN if a gradient is not finite.

    Examples:
        >>> grama_share({"fc1": torch.tensor([[1.0, -1.0], [0.0, 0.0]])}).item()
        0.5
    """
    if not gradients:
        raise ConfigError("grama_share: there are no hidden layers with a gradient")
    scores = torch.cat([gradient_score(layer) for layer in gradients.values()])
    share = (scores <= threshold).double().mean()
    return torch.where(scores.isfinite().all(), share, torch.nan)


@register("metrics", "unit_age", source="Dohare et al. 2024, Algorithm 1: the age of cbp's units")
def unit_age(ages: Mapping[str, Tensor], maturity: int) -> dict[str, Tensor]:
    """Age of units in updates since their last replacement: median, min, share immature.

    The hook `cbp` keeps the ages. A network without that hook has no value.

    Returns:
        ``unit_age`` the lower median, ``unit_age/min``, and ``unit_age/immature`` the share of
        units at or below `maturity`.

    Examples:
        >>> found = unit_age({"fc1": torch.tensor([4, 9]), "fc2": torch.tensor([1])}, 4)
        >>> {name: round(value.item(), 2) for name, value in found.items()}
        {'unit_age': 4.0, 'unit_age/min': 1.0, 'unit_age/immature': 0.67}
    """
    every = torch.cat(list(ages.values()))
    values = {"": every.median(), "/min": every.amin(), "/immature": (every <= maturity).double()}
    return {f"unit_age{key}": value.double().mean() for key, value in values.items()}
