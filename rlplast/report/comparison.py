"""Tests of an arm against the baseline.

- `Comparison`, `compare`: the difference of two arms, with a p-value.
- `welch`: the difference of arms that share no seeds.
- `holm`: p-values of several arms, corrected for their number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rlplast.core.mean_interval import FEWEST
from rlplast.report.statistics import (
    Estimate,
    Mean,
    by_seed,
    estimate_of,
    middle,
    stratified_interval,
    summed,
    variance_of_sum,
)

__all__ = ["Comparison", "compare", "holm", "p_value_of", "welch"]


@dataclass(frozen=True)
class Comparison:
    """How much one arm scores more than another.

    Attributes:
        difference: its interval excludes 0 exactly where the p-value is below 0.05, if there is
            one. Its count is that of pairs: 0 if it is not by seed.
        p_value: two-sided, of the hypothesis that there is no difference; None with too few seeds,
            and where seeds do not differ at all.
        paired: whether the difference is between runs of equal seeds.
    """

    difference: Estimate
    p_value: float | None
    paired: bool


def compare(x: Sequence[Mapping[int, float]], y: Sequence[Mapping[int, float]]) -> Comparison:
    """Compare two arms, by seed if on every task at least `FEWEST` seeds are common.

    The difference is then the interquartile mean over seeds. If not so many are common, but both
    arms have as many of their own on every task, it is that of the plain means, and the test is
    Welch's. With fewer, it is by seed, without an interval and a p-value.

    Args:
        x: per task, scores of one arm by seed.
        y: per task, those of the other.
    """
    pairs = by_seed(x, y)
    count = sum(map(len, pairs))
    if min(map(len, pairs)) >= FEWEST:
        found = middle(pairs)
        return Comparison(estimate_of(found, count), _tested(found), True)
    if min(map(len, [*x, *y])) >= FEWEST:
        found = welch(*([np.array(list(own.values())) for own in arm] for arm in (x, y)))
        return Comparison(estimate_of(found, 0), _tested(found), False)
    return Comparison(stratified_interval(pairs), None, True)


def _tested(found: Mean) -> float | None:
    """Return the p-value; None for seeds without any spread, which look like one run repeated."""
    spread = float(found.variance) > (1e-12 * float(found.value)) ** 2
    return float(p_value_of(found)) if spread or found.value == 0 else None


def welch(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> Mean:
    """Return the difference of the means of independent samples, by Welch's method.

    Over several tasks it is the mean of the tasks' differences, so that each has the same weight
    in both arms.

    Args:
        x: per task, scores of one arm, shape (..., seeds); at least two seeds.
        y: per task, those of the other, shape (..., seeds of that arm).
    """
    samples = [*x, *y]
    parts = [variance_of_sum(own) / (own.shape[-1] * len(x)) ** 2 for own in samples]
    differences = [a.mean(axis=-1) - b.mean(axis=-1) for a, b in zip(x, y, strict=True)]
    return Mean(np.mean(differences, axis=0), *summed(parts, samples))


def p_value_of(found: Mean) -> np.ndarray:
    """Return the two-sided p-value of Student's test against 0.

    Without any spread it is 1 at a value of 0, and 0 elsewhere.
    """
    error = np.sqrt(found.variance)
    sure = np.where(found.value == 0, 0.0, math.inf)
    distance = np.divide(np.abs(found.value), error, out=sure, where=error > 0)
    return 2 * stats.t.sf(distance, found.freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in their order.

    The smallest of m is multiplied by m, the next by m − 1, and so on; none is smaller than one
    before it, and none is above 1. Below 0.05 are then false ones in at most 5% of studies.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(own) for own in corrected]
