"""The 95% interval of a mean of few values; `scripts/coverage.py` measures its coverage."""

import math
from collections.abc import Sequence

__all__ = ["FEWEST", "LEVEL", "interval_of_mean", "student", "wilson"]

LEVEL = 0.95  # the coverage that intervals aim at
FEWEST = 5  # values below which there is no interval
_NORMAL = 1.959963984540054  # standard deviations: where 95% of a normal distribution end


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean: Wilson's if each value is 0 or 1, else Student's.

    There is none of fewer than `FEWEST` values, nor of other equal ones, which show no spread.

    Examples:
        >>> [round(end, 3) for end in interval_of_mean([1.0] * 10)]
        [0.722, 1.0]
    """
    if len(values) < FEWEST:
        return None
    if set(values) <= {0.0, 1.0}:
        return wilson(sum(values) / len(values), len(values))
    return None if len(set(values)) == 1 else student(values)[1:]


def student(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of Student's 95% interval of at least 2 values."""
    import torch  # these take a second, and `rlplast show` needs neither
    from scipy.special import stdtrit

    sample = torch.tensor(values, dtype=torch.float64)
    half = stdtrit(len(sample) - 1, 0.5 + LEVEL / 2) * sample.std() / len(sample) ** 0.5
    mean = float(sample.mean())
    return mean, mean - float(half), mean + float(half)


def wilson(share: float, count: float, quantile: float = _NORMAL) -> tuple[float, float]:
    """Return Wilson's interval (1927) of a share of `count` values, for a normal quantile."""
    square = quantile**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = quantile * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    half /= 1 + square / count
    return max(0.0, middle - half), min(1.0, middle + half)
