"""Slow twins of nonlinearities, from their printed formulas in float64."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, x, alpha * x)


def elu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, x, alpha * (x.exp() - 1))


def smooth_leaky(x: Tensor, alpha: float) -> Tensor:
    """αx + (1 − α)·x·sigmoid(cx/p) with c = 5, p = 3."""
    return alpha * x + (1 - alpha) * x / (1 + (-5 * x / 3).exp())


def rational(x: Tensor, a: Sequence[float], b: Sequence[float]) -> Tensor:
    """Σ aⱼxʲ / (1 + |Σ bₖxᵏ|), k from 1."""
    above = sum(c * x**j for j, c in enumerate(a))
    return above / (1 + abs(sum(c * x**k for k, c in enumerate(b, 1))))


KINDS: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {
    "leaky_relu": (leaky_relu, 0.01),
    "smooth_leaky": (smooth_leaky, 0.1),
    "elu": (elu, 1.0),
    "prelu": (leaky_relu, 0.25),  # as it begins
}


def entrywise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the function of each entry, in the type of x."""
    return function(x.detach().double()).to(x.dtype)


def prelu(z: Tensor, slopes: Sequence[float]) -> Tensor:
    """Return leaky ReLU of z (samples, units, …) with a slope per unit."""
    units = [
        entrywise(lambda x, a=slope: leaky_relu(x, a), z[:, i])  # type: ignore[misc]
        for i, slope in enumerate(slopes)
    ]
    return torch.stack(units, 1)
