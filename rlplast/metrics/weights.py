"""Metrics of one weight tensor in torch's layout, and of a whole state dict.

A tensor does not tell its groups, so functions whose value depends on them take `groups`, and the
others measure its slices as they are stored. A stacked parameter must be passed one member at a
time. Sums of squares run in float64, because float32 norms drift by 1e-4 at 20 M entries.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.fast.symmetric import HALVED, symmetric_product
from rlplast.core.registry import register
from rlplast.metrics.ranks import at_least_float32, spectral_summary

__all__ = [
    "NORMS",
    "SUMMED",
    "Measurement",
    "dfi",
    "dfi_scaled",
    "fire_scale",
    "matrix_slices",
    "measure",
    "sfe",
    "sfe_normalized",
    "weight_difference",
    "weight_norm",
]

_FIRE = "FIRE: Frobenius-Isometry Reinitialization"
SUMMED = ("sfe", "dfi", "dfi_scaled")  # whose total over tensors is a sum
NORMS = ("weight_norm", "weight_difference")  # whose total is a root of summed squares


class Measurement(TypedDict):
    """Result of `measure`; None stands for an undefined value."""

    tensors: dict[str, dict[str, float | None]]
    total: dict[str, float | None]


def _check_kernel_shape(shape: Sequence[int]) -> None:
    if len(shape) < 2 or 0 in shape:
        raise ConfigError(
            f"weight of shape {list(shape)}: allowed is [d_out, d_in] or [C_out, C_in, *kernel], "
            "not empty; leave biases and norm parameters out"
        )


def matrix_slices(weight: Tensor, groups: int = 1) -> Tensor:
    """Return the matrices of a weight, stacked: ``[slices, d_out, d_in]``.

    A linear weight has one slice. A conv weight has one per kernel position, in row-major order. A
    grouped conv weight has as many for each group, group by group. Without groups the result is a
    view of a contiguous or channels-last weight, so writing to it writes to the weight.
    """
    _check_kernel_shape(weight.shape)
    if weight.ndim == 2:
        return weight.unsqueeze(0)
    if groups == 1:
        return weight.flatten(2).permute(2, 0, 1)
    return weight.flatten(2).unflatten(0, (groups, -1)).permute(0, 3, 1, 2).flatten(0, 1)


def fire_scale(weight_shape: Sequence[int], groups: int = 1) -> float:
    """Return the singular value that FIRE gives every matrix of a weight of this shape.

    It is sqrt(d_out / d_in) for a linear weight, and sqrt(C_out / C_in) / (kh * kw) for each
    spatial slice of a conv weight. Each group of a grouped conv counts as a conv of its own.

    Examples:
        >>> fire_scale((64, 16)), fire_scale((64, 16, 2, 2))
        (2.0, 0.5)
    """
    _check_kernel_shape(weight_shape)
    d_out, d_in, *kernel = weight_shape
    return math.sqrt(d_out / groups / d_in) / math.prod(kernel)


def _squared_norm(tensor: Tensor) -> Tensor:
    exact = tensor.double().reshape(-1)
    return exact.dot(exact)


def _difference(weight: Tensor, reference: Tensor) -> Tensor:
    if weight.shape != reference.shape:
        raise ConfigError(
            f"weight of shape {list(weight.shape)} against a reference of shape "
            f"{list(reference.shape)}: both must have the same shape"
        )
    return at_least_float32(weight) - at_least_float32(reference)


def _isometry_gap(matrices: Tensor, scale: float = 1.0) -> Tensor:
    """Sum over slices ``[slices, n, m]``, divided by `scale`, of the smaller Gram's gap."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    if wide.shape[1] < HALVED:
        return gram_gap(wide @ wide.mT, scale)
    slices = (one.contiguous() for one in wide)  # one at a time, which stays in the cache
    return torch.stack([gram_gap(symmetric_product(one, one.mT), scale) for one in slices]).sum()


def gram_gap(gram: Tensor, scale: float) -> Tensor:
    """Return ‖XXᵀ − I‖², summed, where X = W / `scale` and `gram` is W Wᵀ, (..., n, n)."""
    gap = gram / scale**2
    gap.diagonal(dim1=-2, dim2=-1).sub_(1)
    return _squared_norm(gap)


@register("metrics", "weight_norm", source="root of summed squares")
def weight_norm(weight: Tensor) -> Tensor:
    """Frobenius norm of the weight."""
    return torch.linalg.vector_norm(at_least_float32(weight), dtype=torch.float64)


@register("metrics", "weight_difference", source="root of summed squared differences")
def weight_difference(weight: Tensor, reference: Tensor) -> Tensor:
    """Frobenius norm of weight - reference."""
    return weight_norm(_difference(weight, reference))


@register("metrics", "sfe", source=f"{_FIRE}, eq. 1")
def sfe(weight: Tensor, reference: Tensor) -> Tensor:
    """Squared Frobenius error: sum of (weight - reference)^2."""
    return _squared_norm(_difference(weight, reference))


@register("metrics", "sfe_normalized", source=f"{_FIRE}, eq. 1, over the squared norm before")
def sfe_normalized(weight: Tensor, reference: Tensor) -> Tensor:
    """Squared Frobenius error as a share of the reference's squared norm.

    In the equation W is `reference`, the weight before an edit, and W-tilde is `weight`. Dividing
    by the norm before is this library's choice. The value is 0 if nothing changed, inf if a zero
    tensor did.
    """
    error = sfe(weight, reference)
    return torch.where(error == 0, error, error / _squared_norm(reference))


@register("metrics", "dfi", source=f"{_FIRE}, eq. 2, in torch's layout")
def dfi(weight: Tensor) -> Tensor:
    """Deviation from isometry: ||W W^T - I||^2, summed over the slices of a conv weight.

    W is d_out x d_in as torch stores it; the equation writes its transpose. The identity is
    d_out x d_out, so a slice with d_out > d_in has the lower bound d_out - d_in. The value is not
    divided by FIRE's scale, so it can rise under a correct FIRE: see `dfi_scaled`.

    Examples:
        >>> dfi(torch.eye(3)).item(), dfi(torch.eye(3)[:, :2]).item()
        (0.0, 1.0)
    """
    slices = matrix_slices(at_least_float32(weight))
    count, d_out, d_in = slices.shape
    # ||W W^T - I||^2 = ||W^T W - I||^2 + d_out - d_in: the smaller Gram is enough.
    return _isometry_gap(slices) + count * max(0, d_out - d_in)


@register("metrics", "dfi_scaled", source=f"{_FIRE}, eq. 2 and the scale of Algorithm 1")
def dfi_scaled(weight: Tensor, groups: int = 1) -> Tensor:
    """Deviation from isometry after dividing by FIRE's scale, on the smaller Gram.

    Let X = W / `fire_scale`. The value is ||X X^T - I||^2 if d_out <= d_in, else ||X^T X - I||^2,
    summed over the slices of a conv weight. After an exact FIRE it is 0 for every shape.
    """
    slices = matrix_slices(at_least_float32(weight), groups)
    return _isometry_gap(slices, fire_scale(weight.shape, groups))


@torch.no_grad()
def measure(
    tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor] | None = None
) -> Measurement:
    """Measure every floating tensor with two or more dimensions, in float64.

    Tensors without entries and the memories of lifecycle layers are left out. The total is a sum
    for `sfe`, `dfi` and `dfi_scaled`. It is the root of summed squares for `weight_norm` and
    `weight_difference`, and the quotient of the two sums for `sfe_normalized`. Ranks and the
    spectral norm have no total, so it is None.

    Args:
        tensors: weights by name. If there is a reference, the weights after the edit.
        reference: weights before the edit; adds `weight_difference`, `sfe` and `sfe_normalized`.

    Raises:
        BadWeights: naming the first tensor with a value that is not finite.
        ConfigError: naming the first tensor that `tensors` and `reference` do not share,
            or share with different shapes.
    """
    weights = _measurable(tensors, "")
    if reference is None:
        rows = {name: _row(weight, None) for name, weight in weights.items()}
        return {"tensors": rows, "total": _total(rows, None)}
    before = _measurable(reference, "reference ")
    _check_match(weights, before)
    rows = {name: _row(weight, before[name]) for name, weight in weights.items()}
    squares_before = sum(float(_squared_norm(weight.double())) for weight in before.values())
    return {"tensors": rows, "total": _total(rows, squares_before)}


def _measurable(tensors: Mapping[str, Tensor], role: str) -> dict[str, Tensor]:
    chosen = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
        and tensor.ndim >= 2
        and tensor.numel() > 0
        and not _is_memory(name, tensors)
    }
    for name, tensor in chosen.items():
        bad = int((~at_least_float32(tensor).isfinite()).sum())
        if bad:
            raise BadWeights(
                f"{role}tensor {name!r}: {bad} of {tensor.numel()} values are not finite; "
                "measure a checkpoint from before the divergence"
            )
    return chosen


def _is_memory(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Say whether a tensor remembers the weights of a layer whose units sleep."""
    layer, dot, tensor = name.rpartition(".")
    return tensor.startswith("memory_") and f"{layer}{dot}active" in tensors


def _check_match(weights: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    for name in [*weights, *before]:
        shapes = [list(side[name].shape) if name in side else None for side in (weights, before)]
        if shapes[0] != shapes[1]:
            given, expected = (f"of shape {s}" if s else "missing" for s in shapes)
            raise ConfigError(
                f"tensor {name!r} is {given} in the file and {expected} in the reference: "
                "both must hold the same tensors"
            )


def _row(weight: Tensor, before: Tensor | None) -> dict[str, float | None]:
    weight = weight.double()
    values = {
        "weight_norm": weight_norm(weight),
        **spectral_summary(weight),
        "dfi": dfi(weight),
        "dfi_scaled": dfi_scaled(weight),
    }
    if before is not None:
        before = before.double()
        values["weight_difference"] = weight_difference(weight, before)
        values["sfe"] = sfe(weight, before)
        values["sfe_normalized"] = sfe_normalized(weight, before)
    return {metric: _finite(float(value)) for metric, value in values.items()}


def _total(
    rows: Mapping[str, Mapping[str, float | None]], squares_before: float | None
) -> dict[str, float | None]:
    metrics = ["weight_norm", "spectral_norm", "srank", "effective_rank", "stable_rank"]
    metrics += ["dfi", "dfi_scaled"]
    metrics += [] if squares_before is None else ["weight_difference", "sfe", "sfe_normalized"]
    total: dict[str, float | None] = dict.fromkeys(metrics)

    def values(metric: str) -> list[float]:
        entries = (row[metric] for row in rows.values())
        return [math.nan if value is None else value for value in entries]

    for metric in metrics:
        if metric in SUMMED:
            total[metric] = _finite(math.fsum(values(metric)))
        elif metric in NORMS:
            total[metric] = _finite(math.hypot(*values(metric)))
    if squares_before:
        total["sfe_normalized"] = _finite(math.fsum(values("sfe")) / squares_before)
    return total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
