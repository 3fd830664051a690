"""Statistics of a few runs: point estimates, each with an interval.

- `stratified_interval`: the interquartile mean of several tasks' scores, seeds resampled per task.
- `probability_of_improvement`: how often a run of one arm beats a run of another.
- `paired_difference`: differences between runs of equal seeds.
- `align`, `curve_band`: curves on common points, and their interquartile mean with a band.
- `area_under_curve`, `drop_and_recovery`: what one curve says.

Point estimates and stratified percentile bootstrap after Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv:2108.13264). As in rliable,
the interquartile mean (IQM) leaves out ⌊n/4⌋ values at either end. Every function draws from a
generator of its own seed, so a report repeats. With fewer than two seeds in a task there is nothing
to resample: `low` and `high` are then not-a-number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Drop",
    "Estimate",
    "align",
    "area_under_curve",
    "curve_band",
    "drop_and_recovery",
    "paired_difference",
    "probability_of_improvement",
    "stratified_interval",
]

LEVEL, RESAMPLES = 0.95, 2000  # of all intervals: their coverage, and the bootstrap samples behind

_SEED = 0  # of the resampling
_TRIM = 0.25  # share cut off at either end
_CELLS = 2_000_000  # numbers held at once while resampling


@dataclass(frozen=True)
class Estimate:
    """A value with the ends of its interval.

    Attributes:
        value: the point estimate; not-a-number for no scores.
        low: lower end; not-a-number where a task has fewer than two seeds.
        high: upper end, likewise.
        count: how many scores are behind it.
    """

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Drop:
    """What an intervention did to a score at once, and for how long.

    Attributes:
        drop: how much worse the first score after it is than the last before; negative if better.
        recovered_after: units of the curve's x from the intervention to the first score that
            is at least as good as the last before; 0 without a drop, None if that never came.
    """

    drop: float
    recovered_after: float | None


def stratified_interval(scores: Sequence[np.ndarray]) -> Estimate:
    """Estimate the IQM of the scores of all tasks together.

    Seeds are drawn with replacement within each task, so that every task keeps its weight.

    Args:
        scores: per task, the scores of its seeds, shape (seeds,), all numbers.
    """

    def pooled(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(np.concatenate(parts, axis=axis), _TRIM, axis=axis)

    return _bootstrap(scores, pooled, sum(map(len, scores)))


def probability_of_improvement(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> Estimate:
    """Estimate how likely a run of `x` scores higher than a run of `y` on a task.

    The mean over tasks of P(X > Y) + ½ P(X = Y), counted over all pairs of seeds (the
    Mann–Whitney U statistic over its maximum). The two arms are resampled independently.

    Args:
        x: per task, the scores of one arm's seeds, shape (seeds,).
        y: per task, those of the other arm, shape (seeds of that arm,).
    """

    def improvement(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = zip(parts[: len(x)], parts[len(x) :], strict=True)
        return np.mean([_wins(a, b) for a, b in pairs], axis=0)

    return _bootstrap([*x, *y], improvement, sum(map(len, x)))


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the share of pairs along the last axes that x wins; a tie counts half."""
    signs = np.sign(x[..., :, None] - y[..., None, :])
    return 0.5 + signs.mean(axis=(-2, -1)) / 2


def paired_difference(
    x: Sequence[Mapping[int, float]], y: Sequence[Mapping[int, float]]
) -> Estimate:
    """Estimate x − y between runs of equal seeds, which share their prefix or initial weights.

    What a seed does to both arms alike drops out, so fewer seeds show a difference.

    Args:
        x: per task, scores of one arm by seed.
        y: per task, those of the other; seeds that only one arm has are left out.
    """
    differences = [
        np.array([ours[own] - theirs[own] for own in sorted(ours.keys() & theirs.keys())])
        for ours, theirs in zip(x, y, strict=True)
    ]
    return stratified_interval(differences)


def _bootstrap(
    samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray], count: int
) -> Estimate:
    """Return the statistic of samples that are resampled each on its own, with percentiles."""
    fewest = min(map(len, samples))
    value = float(statistic(*samples)) if fewest else math.nan
    if fewest < 2:
        return Estimate(value, math.nan, math.nan, count)
    low, high = stats.bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        batch=max(1, _CELLS // sum(len(own) ** 2 for own in samples)),
        vectorized=True,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Estimate(value, float(low), float(high), count)


def align(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Put curves on the union of their points, by straight lines between each one's own.

    Outside a curve's own range there is nothing: not-a-number. Of several values at one x the
    last counts.

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


def curve_band(ys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the IQM over seeds at every point, and the ends of its bootstrap interval.

    The same seeds are drawn for all points, so that the band is as smooth as the curves.

    Args:
        ys: shape (seeds, points); not-a-number where a run has no score, which is left out.

    Returns:
        value, low and high, each of shape (points,); low and high are not-a-number at points
        that fewer than two seeds have.
    """
    seeds, points = ys.shape
    low, high = np.full(points, np.nan), np.full(points, np.nan)
    drawn = np.random.default_rng(_SEED).integers(0, seeds, (RESAMPLES, seeds))
    width = max(1, _CELLS // drawn.size)
    tail = 50 * (1 - LEVEL)
    enough = np.flatnonzero((~np.isnan(ys)).sum(axis=0) > 1)
    for start in range(0, len(enough), width):
        columns = enough[start : start + width]
        means = _iqm_of_present(np.moveaxis(ys[:, columns][drawn], 1, 0))
        # A resample that has only seeds without a score here says nothing about this point.
        low[columns], high[columns] = np.nanpercentile(means, [tail, 100 - tail], axis=0)
    return _iqm_of_present(ys), low, high


def _iqm_of_present(values: np.ndarray) -> np.ndarray:
    """Return the IQM over the first axis of what is a number there; none gives not-a-number."""
    ordered = np.sort(values, axis=0)  # not-a-number last
    present = (~np.isnan(ordered)).sum(axis=0)
    cut = (present * _TRIM).astype(int)
    rank = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    kept = (rank >= cut) & (rank < present - cut)
    total = np.where(kept, ordered, 0.0).sum(axis=0)
    return np.where(present > 0, total / np.maximum(present - 2 * cut, 1), np.nan)


def area_under_curve(xs: np.ndarray, ys: np.ndarray, start: float | None = None) -> float:
    """Return a curve's mean height: its area by trapezoids over its length.

    Args:
        xs: ascending, shape (points,).
        ys: shape (points,).
        start: x from which on; the curve is cut there by a straight line. Default, or before
            the first point: the whole curve.

    Returns:
        The mean height; of a single point its value, of none not-a-number.
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


def drop_and_recovery(
    xs: np.ndarray, ys: np.ndarray, moment: float, after: int, higher_is_better: bool
) -> Drop | None:
    """Return how much a score fell at an intervention, and when it was back.

    Args:
        xs: ascending, shape (points,).
        ys: shape (points,).
        moment: x of the intervention.
        after: index of the first score after it.
        higher_is_better: False for losses.

    Returns:
        None without a score on either side.
    """
    if not 0 < after < len(xs):
        return None
    sign = 1.0 if higher_is_better else -1.0
    drop = sign * float(ys[after - 1] - ys[after])
    back = xs[after:][sign * (ys[after:] - ys[after - 1]) >= 0]
    recovered = float(back[0] - moment) if len(back) else None
    return Drop(drop, 0.0 if drop <= 0 else recovered)
