"""Slow twin of RigL (Evci et al. 2020): densities by bisection, masks by Python's sort."""

import math


def densities(shapes: list[tuple[int, ...]], sparsity: float) -> list[float]:
    """ERK: min(1, factor · Σ sizes/Π sizes), with the factor that gives the whole its density."""
    sizes = [math.prod(shape) for shape in shapes]
    wanted, low, high = (1 - sparsity) * sum(sizes), 0.0, 1e9
    found: list[float] = []
    for _ in range(200):
        factor = (low + high) / 2
        found = [min(1.0, factor * sum(s) / n) for s, n in zip(shapes, sizes, strict=True)]
        total = sum(d * n for d, n in zip(found, sizes, strict=True))
        low, high = (factor, high) if total < wanted else (low, factor)
    return found


def share(t: int, until: int, alpha: float) -> float:
    """The share of weights that move at update t."""
    return alpha * math.cos(math.pi * t / until / 2) ** 2


def move(mask: list[bool], weights: list[float], gradients: list[float], moved: int) -> list[bool]:
    """Drop the smallest of the weights, grow as many where gradients are largest."""
    active = [i for i, on in enumerate(mask) if on]
    dropped = set(sorted(active, key=lambda i: (abs(weights[i]), -i))[:moved])
    able = [i for i in range(len(mask)) if i not in active or i in dropped]
    grown = set(sorted(able, key=lambda i: (-abs(gradients[i]), i))[:moved])
    return [i in grown or (on and i not in dropped) for i, on in enumerate(mask)]
