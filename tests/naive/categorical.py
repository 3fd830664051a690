"""Slow twins of categorical values: NumPy and SciPy, a sample and a bin at a time, in float64."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

__all__ = [
    "c51_twin",
    "centres_twin",
    "cross_entropy_twin",
    "hl_gauss_twin",
    "softmax_twin",
    "target_twin",
    "two_hot_twin",
]


def softmax_twin(logits: Sequence[float]) -> np.ndarray:
    largest = max(logits)
    found = [math.exp(float(x) - float(largest)) for x in logits]
    return np.array([x / sum(found) for x in found])


def centres_twin(kind: str, bins: int, low: float, high: float) -> np.ndarray:
    """The middle of each bin of HL-Gauss, the atoms of the others."""
    if kind == "hl_gauss":
        width = (high - low) / bins
        return np.array([low + width / 2 + i * width for i in range(bins)])
    return np.array([low + i * (high - low) / (bins - 1) for i in range(bins)])


def hl_gauss_twin(value: float, bins: int, low: float, high: float, sigma: float) -> np.ndarray:
    """How much of a Gaussian, cut at both ends, lies in each bin."""
    value, width = min(max(value, low), high), (high - low) / bins
    spread = sigma * width
    inside = norm.cdf(high, value, spread) - norm.cdf(low, value, spread)
    found = []
    for i in range(bins):
        left, right = low + i * width, low + (i + 1) * width
        found.append((norm.cdf(right, value, spread) - norm.cdf(left, value, spread)) / inside)
    return np.array(found)


def two_hot_twin(value: float, bins: int, low: float, high: float) -> np.ndarray:
    """The two atoms around a value share 1 so that their mean is the value."""
    return c51_twin(np.ones(1), np.array([value]), bins, low, high)


def c51_twin(
    shares: np.ndarray, moved: np.ndarray, bins: int, low: float, high: float
) -> np.ndarray:
    """Algorithm 1 of Bellemare et al. 2017: each moved atom's share goes to its two neighbours."""
    found, width = np.zeros(bins), (high - low) / (bins - 1)
    for share, place in zip(shares, moved, strict=True):
        b = (min(max(place, low), high) - low) / width
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            found[lower] += share
        else:
            found[lower] += share * (upper - b)
            found[upper] += share * (b - lower)
    return found


def target_twin(
    config, reward: float, discount: float, logits_next: Sequence[float], cost: float
) -> tuple[np.ndarray, float]:
    """The probabilities that one transition teaches, and how much of its target is clipped."""
    bins, low, high = config.bins, config.low, config.high
    shares, centres = softmax_twin(logits_next), centres_twin(config.kind, bins, low, high)
    if config.kind == "c51":
        moved = np.array([reward + discount * (z - cost) for z in centres])
        outside = sum(s for s, z in zip(shares, moved, strict=True) if not low <= z <= high)
        return c51_twin(shares, moved, bins, low, high), float(outside)
    mean = sum(s * z for s, z in zip(shares, centres, strict=True))
    value = reward + discount * (mean - cost)
    outside = float(not low <= value <= high)
    if config.kind == "two_hot":
        return two_hot_twin(value, bins, low, high), outside
    return hl_gauss_twin(value, bins, low, high, config.sigma), outside


def cross_entropy_twin(logits: Sequence[float], target: np.ndarray) -> float:
    largest = max(float(x) for x in logits)
    total = math.log(sum(math.exp(float(x) - largest) for x in logits)) + largest
    return -sum(p * (float(x) - total) for p, x in zip(target, logits, strict=True))
