"""Metrics of activations and of gradients.

None branches on values or makes the host wait. An activation that is not finite makes a share or a
count NaN; it never passes for a healthy number.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.context import Activations
from rlplast.core.method.readings import Source
from rlplast.core.registry import register
from rlplast.metrics.ranks import as_matrix, at_least_float32

__all__ = [
    "active_fraction",
    "by_member",
    "dormant_ratio",
    "effective_lr",
    "feature_covariance_distance",
    "feature_norm",
    "gradient_norm",
    "known_activations",
    "last_features",
    "saturation",
    "saturation_percentile",
]


def _checked(activations: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not activations:
        raise ConfigError("activations are empty: feature metrics need at least one hidden layer")
    for name, layer in activations.items():
        if layer.ndim < 2:
            raise ConfigError(
                f"activations {name!r} of shape {list(layer.shape)}: allowed is [batch, units] or "
                "[batch, channels, *space]"
            )
    return {name: at_least_float32(layer) for name, layer in activations.items()}


def _nan_unless_finite(value: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
    return torch.where(finite, value.double(), torch.nan)


def known_activations(source: Source, key: str, batch: Any) -> Activations:
    """Return a network's activations; none where no hidden units are known."""
    try:
        return source.activations(key, batch)
    except NothingToEdit:
        return {}


def by_member(activations: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Split the activations of a stacked network by member: ``[0].fc1`` belongs to ``[0]``."""
    members: dict[str, dict[str, Tensor]] = {}
    for name, activation in activations.items():
        member = name.partition(".")[0] if name.startswith("[") else ""
        members.setdefault(member, {})[name] = activation
    return members


def _share(counts: Sequence[Tensor], tensors: Sequence[Tensor], total: int) -> Tensor:
    return _nan_unless_finite(torch.stack(list(counts)).sum().double() / total, tensors)


def _dormant_units(layer: Tensor, threshold: float) -> Tensor:
    """Return which units of one layer are dormant, shape ``[units]``."""
    activity = layer.abs().transpose(0, 1).flatten(1).mean(1)
    # The score's denominator is multiplied out: an all-zero layer (0 <= 0) is dormant.
    return activity <= threshold * activity.mean()


@register(
    "metrics",
    "dormant_ratio",
    source="Sokar et al. 2023, 'The Dormant Neuron Phenomenon', definitions 3.1 and 3.2",
)
def dormant_ratio(
    activations: Mapping[str, Tensor], *, threshold: NonNegativeFloat = 0.025
) -> Tensor:
    """Share of dormant units among all units of all layers.

    A unit's score is its mean |h| over batch and space, divided by the mean of that over its layer.
    The unit is dormant if its score is at or below the threshold. In an all-zero layer every unit
    is dormant. Large layers weigh more: this is not the mean of the layers' ratios.

    Examples:
        >>> activations = {"fc1": torch.tensor([[1.0, 0.0]]), "fc2": torch.ones(1, 2)}
        >>> dormant_ratio(activations).item()
        0.25
    """
    layers = list(_checked(activations).values())
    counts = [_dormant_units(layer, threshold).sum() for layer in layers]
    return _share(counts, layers, sum(layer.shape[1] for layer in layers))


@register("metrics", "active_fraction", source="share of positive activations after the ReLU")
def active_fraction(activations: Mapping[str, Tensor]) -> Tensor:
    """Share of positive entries among all entries of all layers."""
    layers = list(_checked(activations).values())
    return _share([(layer > 0).sum() for layer in layers], layers, sum(t.numel() for t in layers))


@register(
    "metrics",
    "saturation",
    source="Glorot & Bengio 2010, section 3.2; the bound is this library's choice",
)
def saturation(
    activations: Mapping[str, Tensor], *, bound: Annotated[float, Field(gt=0, lt=1)] = 0.99
) -> Tensor:
    """Share of saturated entries of all layers, for tanh units: those with |h| above a bound.

    `saturation_percentile` is the companion value, the 98th percentile of the magnitude.
    """
    layers = list(_checked(activations).values())
    counts = [(layer.abs() > bound).sum() for layer in layers]
    return _share(counts, layers, sum(layer.numel() for layer in layers))


@register(
    "metrics",
    "saturation_percentile",
    source="Glorot & Bengio 2010, figure 3: 98th percentile of the activation",
)
def saturation_percentile(
    activations: Mapping[str, Tensor], *, quantile: Annotated[float, Field(ge=0, le=1)] = 0.98
) -> Tensor:
    """98th percentile of the magnitude of all entries of all layers.

    Linear interpolation between order statistics, NumPy's default. For one layer's value,
    pass that layer's activations alone; a run logs these too.
    """
    layers = list(_checked(activations).values())
    magnitudes = torch.cat([layer.abs().flatten().double() for layer in layers])
    position = quantile * (magnitudes.numel() - 1)
    # Order statistics, because torch.quantile stops at 16 M entries.
    below = magnitudes.kthvalue(math.floor(position) + 1).values
    above = magnitudes.kthvalue(math.ceil(position) + 1).values
    return _nan_unless_finite(below + (above - below) * (position % 1), layers)


def last_features(activations: Mapping[str, Tensor]) -> Tensor:
    """Return the last activations as a matrix ``[batch, features]``, space flattened.

    `srank` and `effective_rank` of it are the feature ranks of the literature.
    """
    return as_matrix(list(_checked(activations).values())[-1])


@register("metrics", "feature_norm", source="mean norm of the last hidden layer's rows")
def feature_norm(activations: Mapping[str, Tensor]) -> Tensor:
    """Euclidean norm of a sample's features in the last hidden layer, averaged over the batch."""
    return torch.linalg.vector_norm(last_features(activations), dim=1, dtype=torch.float64).mean()


@register(
    "metrics",
    "feature_covariance_distance",
    source="FIRE: Frobenius-Isometry Reinitialization, Theorem 1",
)
def feature_covariance_distance(features: Tensor, reference: Tensor) -> Tensor:
    """Frobenius distance of two normalised feature covariances, C = H H^T / ||H||^2.

    C is ``[batch, batch]``, so the two representations, of one batch, may differ in width. Rotating
    or scaling one does not change the distance, which is in ``[0, sqrt(2)]``. For features H that
    are all zero it is NaN.
    """
    if features.shape[:1] != reference.shape[:1]:
        raise ConfigError(
            f"features of shape {list(features.shape)} against a reference of shape "
            f"{list(reference.shape)}: both must be of the same batch"
        )

    def covariance(hidden: Tensor) -> Tensor:
        matrix = as_matrix(hidden).double()
        matrix = matrix / torch.linalg.vector_norm(matrix)
        return matrix @ matrix.T

    return torch.linalg.vector_norm(covariance(features) - covariance(reference))


@register("metrics", "gradient_norm", source="root of summed squares over all parameters")
def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Norm of all gradients, taken as one long vector."""
    return _joint_norm(gradients, "gradients")


@register("metrics", "effective_lr", source="gradient norm over parameter norm")
def effective_lr(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Norm of all gradients, divided by the norm of all parameters."""
    return _joint_norm(gradients, "gradients") / _joint_norm(parameters, "parameters")


def _joint_norm(tensors: Sequence[Tensor], what: str) -> Tensor:
    if not tensors:
        raise ConfigError(f"{what} are empty: pass at least one tensor")
    norms = [torch.linalg.vector_norm(at_least_float32(t), dtype=torch.float64) for t in tensors]
    return torch.linalg.vector_norm(torch.stack(norms))
