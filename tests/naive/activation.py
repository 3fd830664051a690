"""Slow twins of nonlinearities: Python's floats, one entry at a time."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def leaky_relu(x: float, alpha: float) -> float:
    return x if x > 0 else alpha * x


def elu(x: float, alpha: float) -> float:
    return x if x > 0 else alpha * (math.exp(x) - 1)


def smooth_leaky(x: float, alpha: float) -> float:
    """αx + (1 − α)·x·sigmoid(cx/p) with c = 5, p = 3."""
    return alpha * x + (1 - alpha) * x / (1 + math.exp(-5 * x / 3))


def rational(x: float, a: Sequence[float], b: Sequence[float]) -> float:
    """Σ aⱼxʲ / (1 + |Σ bₖxᵏ|), k from 1."""
    above = sum(float(c) * x**j for j, c in enumerate(a))
    return above / (1 + abs(sum(float(c) * x**k for k, c in enumerate(b, 1))))


KINDS: dict[str, tuple[Callable[[float, float], float], float]] = {
    "leaky_relu": (leaky_relu, 0.01),
    "smooth_leaky": (smooth_leaky, 0.1),
    "elu": (elu, 1.0),
    "prelu": (leaky_relu, 0.25),  # as it begins
}


def entrywise(function: Callable[[float], float], x: Tensor) -> Tensor:
    """Return the function of each entry."""
    values = [function(float(value)) for value in x.flatten()]
    return torch.tensor(values, dtype=x.dtype).view(x.shape)


def prelu(z: Tensor, slopes: Sequence[float]) -> Tensor:
    """Return leaky ReLU of z (samples, units, …) with a slope per unit."""
    units = [
        entrywise(lambda x, a=slope: leaky_relu(x, a), z[:, i])  # type: ignore[misc]
        for i, slope in enumerate(slopes)
    ]
    return torch.stack(units, 1)
