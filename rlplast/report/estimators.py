"""Statistics of a few runs: point estimates, each with an interval, and tests.

As in rliable (Agarwal et al. 2021, arXiv:2108.13264), the interquartile mean (IQM) leaves out
⌊n/4⌋ values at either end. Its interval is Student's; docs/explanation/statistics.md says how often
it holds the true value, as `scripts/coverage.py` measures it. With fewer than `FEWEST` seeds in a
task `low` and `high` are not-a-number. Nothing here is random.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # whose stats are loaded at first use: half a second

from rlplast.core.mean_interval import FEWEST, LEVEL

__all__ = [
    "ALPHA",
    "UNBOUNDED",
    "Comparison",
    "Estimate",
    "Mean",
    "align",
    "area_under_curve",
    "compare_arms",
    "curve_band",
    "estimate_of",
    "holm",
    "interval_of",
    "middle",
    "newcombe_interval",
    "p_value_of",
    "probability_of_improvement",
    "stratified_interval",
    "summed",
    "variance_of_sum",
    "welch",
    "within",
]

UNBOUNDED = (-math.inf, math.inf)

ALPHA = 0.05  # the level of tests

_TRIM = 0.25  # share cut off at either end


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, of `count` scores; not-a-number what these are too few for."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Mean:
    """A mean or a trimmed mean, as Student's t knows it; arrays of the samples' leading shape."""

    value: np.ndarray
    variance: np.ndarray
    freedom: np.ndarray


def middle(samples: Sequence[np.ndarray]) -> Mean:
    """Return the IQM of all samples together, with its standard error.

    That is the larger of two: that of a trimmed mean (Tukey & McLaughlin 1963), from winsorised
    values, which with few seeds is too small where the seeds in the middle happen to agree; and
    that of the plain mean. Both are made within each sample, so how far tasks are apart is in
    neither.

    Args:
        samples: per task, scores, shape (..., seeds), at least two seeds; leading axes equal.
    """
    ordered = np.sort(np.concatenate(samples, axis=-1), axis=-1)
    total = ordered.shape[-1]
    cut = int(total * _TRIM)
    kept = total - 2 * cut
    lowest, highest = ordered[..., [cut]], ordered[..., [total - cut - 1]]
    moved = [np.clip(own, lowest, highest) for own in samples]
    trimmed, freedom = summed([variance_of_sum(own) / kept**2 for own in moved], samples)
    whole, other = summed([variance_of_sum(own) / total**2 for own in samples], samples)
    return Mean(
        ordered[..., cut : total - cut].mean(axis=-1),
        np.maximum(trimmed, whole),
        np.where(trimmed > whole, freedom, other),
    )


def variance_of_sum(sample: np.ndarray) -> np.ndarray:
    """Return the variance of the sum of a sample of shape (..., seeds)."""
    equal = (sample == sample[..., :1]).all(axis=-1)  # whose mean may differ by a rounding error
    return np.where(equal, 0.0, sample.shape[-1] * sample.var(axis=-1, ddof=1))


def summed(
    variances: Sequence[np.ndarray], samples: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the samples' variances, and its degrees of freedom by Satterthwaite."""
    total = np.sum(variances, axis=0)
    terms = [(v / np.where(total > 0, total, 1)) ** 2 for v in variances]  # shares
    inverse = sum(v / (own.shape[-1] - 1) for v, own in zip(terms, samples, strict=True))
    return total, 1 / np.where(total > 0, inverse, 1.0)


def interval_of(found: Mean) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of Student's interval of level `LEVEL`."""
    half = scipy.stats.t.ppf(0.5 + LEVEL / 2, found.freedom) * np.sqrt(found.variance)
    return found.value - half, found.value + half


def estimate_of(found: Mean, count: int) -> Estimate:
    """Return one value as an estimate of `count` scores."""
    low, high = interval_of(found)
    return Estimate(float(found.value), float(low), float(high), count)


def within(found: Estimate, bounds: tuple[float, float]) -> Estimate:
    """Return an estimate whose interval is cut at what the estimated value can be."""
    return replace(
        found, low=float(np.clip(found.low, *bounds)), high=float(np.clip(found.high, *bounds))
    )


def stratified_interval(
    scores: Sequence[np.ndarray], bounds: tuple[float, float] = UNBOUNDED
) -> Estimate:
    """Estimate the IQM of the scores of all tasks together.

    Args:
        scores: per task, the scores of its seeds, shape (seeds,), all numbers.
        bounds: the least and the largest possible score, where the interval is cut.
    """
    count, fewest = sum(map(len, scores)), min(map(len, scores))
    if fewest >= FEWEST:
        return within(estimate_of(middle(scores), count), bounds)
    value = float(scipy.stats.trim_mean(np.concatenate(scores), _TRIM)) if fewest else math.nan
    return Estimate(value, math.nan, math.nan, count)


def probability_of_improvement(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> Estimate:
    """Estimate how likely a run of `x` scores higher than a run of `y` on a task.

    The mean over tasks of P(X > Y) + ½ P(X = Y), over all pairs of seeds (the Mann–Whitney U
    statistic over its maximum). The two arms count as independent: where they share seeds, the
    interval is rather too long. Both have, per task, the scores of the arm's seeds, shape (seeds,).
    """
    count, sizes = sum(map(len, x)), [(len(a), len(b)) for a, b in zip(x, y, strict=True)]
    fewest = min(map(min, sizes))
    share = math.nan
    if fewest:
        signs = (np.sign(a[:, None] - b[None, :]) for a, b in zip(x, y, strict=True))
        share = float(np.mean([0.5 + sign.mean() / 2 for sign in signs]))  # a tie counts half
    if fewest < FEWEST:
        return Estimate(share, math.nan, math.nan, count)
    low, high = newcombe_interval(np.array(share), sizes)
    return Estimate(share, float(low), float(high), count)


def newcombe_interval(
    share: np.ndarray, sizes: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the share of pairs that are won, a mean over tasks.

    Newcombe's method 5 (2006, Statistics in Medicine 25:559): all shares whose distance from the
    given one is at most 1.96 of the standard errors that Hanley & McNeil (1982) give for them. It
    lies within 0 and 1, and has a length where all pairs are won. As if all tasks had one share,
    which is cautious.

    Args:
        share: from 0 to 1, any shape.
        sizes: per task, the seeds of the one arm and of the other.
    """
    share = np.asarray(share, dtype=float)
    quantile = scipy.stats.norm.ppf(0.5 + LEVEL / 2)

    def error(true: np.ndarray) -> np.ndarray:
        pairs = (1 - true) / (2 - true) + true / (1 + true)
        parts = [true * (1 - true) * (1 + ((m + n) / 2 - 1) * pairs) / (m * n) for m, n in sizes]
        return quantile * np.sqrt(sum(parts)) / len(sizes)

    ends = []
    for end in (0.0, 1.0):
        inside, outside = share, np.full(share.shape, end)
        for _ in range(60):  # halvings: to the last bit
            half = (inside + outside) / 2
            near = np.abs(half - share) <= error(half)
            inside, outside = np.where(near, half, inside), np.where(near, outside, half)
        ends.append(inside)
    return ends[0], ends[1]


def align(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Put curves on the union of their points, by straight lines between each one's own.

    Outside a curve's own range there is not-a-number. Of several values at one x the last counts.

    Args:
        curves: (xs, ys) each, xs ascending; both of shape (points of that curve,).

    Returns:
        The points, shape (points,), and the curves there, shape (curves, points).
    """
    own = [_last_of_each(xs, ys) for xs, ys in curves]
    points = np.unique(np.concatenate([np.empty(0), *(xs for xs, _ in own)]))
    rows = [
        np.interp(points, xs, ys, left=np.nan, right=np.nan)
        if len(xs)
        else np.full(len(points), np.nan)
        for xs, ys in own
    ]
    return points, np.array(rows).reshape(len(own), len(points))


def _last_of_each(xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    last = np.append(xs[1:] != xs[:-1], [True])[: len(xs)]
    return xs[last], ys[last]


def curve_band(
    ys: np.ndarray, bounds: tuple[float, float] = UNBOUNDED
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the IQM over seeds at every point, and the ends of its interval.

    Each point has the interval that `stratified_interval` gives its scores: the band holds the true
    value at 95% of the points, not the whole true curve in 95% of studies.

    Args:
        ys: shape (seeds, points); not-a-number where a run has no score, which is left out.
        bounds: the least and the largest possible score, where the band is cut.

    Returns:
        value, low and high, each of shape (points,); low and high are not-a-number at points that
        fewer than `FEWEST` seeds have.
    """
    ordered = np.sort(ys.T, axis=-1)  # not-a-number last
    present = (~np.isnan(ordered)).sum(axis=-1)
    value, low, high = (np.full(len(ordered), np.nan) for _ in range(3))
    for count in np.unique(present[present > 0]):
        here = present == count
        scores = ordered[here, :count]
        value[here] = scipy.stats.trim_mean(scores, _TRIM, axis=-1)
        if count >= FEWEST:
            low[here], high[here] = interval_of(middle([scores]))
    return value, np.clip(low, *bounds), np.clip(high, *bounds)


def area_under_curve(xs: np.ndarray, ys: np.ndarray, start: float | None = None) -> float:
    """Return a curve's mean height: its area by trapezoids over its length.

    The curve begins at `start`, cut there by a straight line, or at its first point. `xs` ascend;
    both have shape (points,). Of a single point it is its value, of none not-a-number.
    """
    if start is not None and len(xs) and start > xs[0]:
        if start > xs[-1]:
            return math.nan
        inside = xs > start
        first = np.interp(start, *_last_of_each(xs, ys))
        xs, ys = np.append(start, xs[inside]), np.append(first, ys[inside])
    if len(xs) == 0:
        return math.nan
    length = xs[-1] - xs[0]
    return float(np.trapezoid(ys, xs) / length) if length > 0 else float(ys[-1])


@dataclass(frozen=True)
class Comparison:
    """How much one arm scores more than another.

    Attributes:
        difference: its interval excludes 0 exactly where the p-value is below 0.05, if there is
            one. Its count is that of pairs: 0 if it is not by seed.
        p_value: two-sided; None with too few seeds, and where seeds do not differ at all.
        paired: whether the difference is between runs of equal seeds.
    """

    difference: Estimate
    p_value: float | None
    paired: bool


def compare_arms(x: Sequence[Mapping[int, float]], y: Sequence[Mapping[int, float]]) -> Comparison:
    """Compare two arms, per task scores by seed, by seed if on each at least `FEWEST` are common.

    The difference is then the interquartile mean over seeds. If not so many are common, but both
    arms have as many of their own on every task, it is that of the plain means, and the test is
    Welch's. With fewer, it is by seed, without an interval and a p-value.
    """
    pairs = [
        np.array([ours[own] - theirs[own] for own in sorted(ours.keys() & theirs.keys())])
        for ours, theirs in zip(x, y, strict=True)
    ]
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

    Over several tasks it is the mean of the tasks' differences. Per task, arms have scores of shape
    (..., seeds), at least two seeds.
    """
    samples = [*x, *y]
    parts = [variance_of_sum(own) / (own.shape[-1] * len(x)) ** 2 for own in samples]
    differences = [a.mean(axis=-1) - b.mean(axis=-1) for a, b in zip(x, y, strict=True)]
    return Mean(np.mean(differences, axis=0), *summed(parts, samples))


def p_value_of(found: Mean) -> np.ndarray:
    """Return the two-sided p-value of Student's test against 0; without spread it is 1 or 0."""
    error = np.sqrt(found.variance)
    sure = np.where(found.value == 0, 0.0, math.inf)
    distance = np.divide(np.abs(found.value), error, out=sure, where=error > 0)
    return 2 * scipy.stats.t.sf(distance, found.freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in their order.

    Below 0.05 are then false ones in at most 5% of studies.

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
