"""Estimates with intervals, against slow twins and closed forms."""

import itertools
import math

import numpy as np
import pytest

from rlplast.report import statistics
from rlplast.report.statistics import (
    Drop,
    align,
    area_under_curve,
    curve_band,
    drop_and_recovery,
    paired_difference,
    probability_of_improvement,
    stratified_interval,
)

nan = math.nan


def slow_iqm(values: list[float]) -> float:
    """The mean of what is left without the lowest and the highest ⌊n/4⌋ values."""
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("count", range(1, 14))
def test_an_estimate_is_the_mean_of_the_middle(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert stratified_interval([values]).value == pytest.approx(slow_iqm(list(values)), abs=1e-14)


def test_an_interval_is_of_resamples_within_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 27 × 4 equally likely resamples of tasks with 3 and 2 seeds, listed."""
    monkeypatch.setattr(statistics, "RESAMPLES", 20_000)
    tasks = [np.array([1.0, 2.0, 6.0]), np.array([10.0, 14.0])]
    draws = [itertools.product(task, repeat=len(task)) for task in tasks]
    exact = [slow_iqm([*a, *b]) for a, b in itertools.product(*draws)]
    found = stratified_interval(tasks)
    low, high = np.percentile(exact, [2.5, 97.5])
    assert (found.value, found.count) == (pytest.approx(6), 5)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.3)
    drawn = np.random.default_rng(0).choice(np.concatenate(tasks), (20_000, 5))
    unstratified = [slow_iqm(list(own)) for own in drawn]
    assert np.percentile(unstratified, 2.5) < low - 1  # so the assertion above tells them apart


def test_intervals_repeat_and_touch_no_global_generator() -> None:
    tasks = [np.random.default_rng(0).normal(size=n) for n in (8, 5)]
    ys = np.random.default_rng(0).normal(size=(4, 3))
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    assert stratified_interval(tasks) == stratified_interval(tasks)
    np.testing.assert_array_equal(curve_band(ys), curve_band(ys))
    assert np.random.random() == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[1.0, 2.0], [6.0]], (3, nan, nan)),
        ([[]], (nan, nan, nan)),
        ([[2.0] * 5], (2, 2, 2)),
    ],
)
def test_one_seed_has_no_interval_and_equal_ones_have_one_of_no_length(
    scores: list[list[float]], expected: tuple[float, float, float]
) -> None:
    found = stratified_interval([np.array(own) for own in scores])
    np.testing.assert_array_equal((found.value, found.low, found.high), expected)


def probability(x: list[np.ndarray], y: list[np.ndarray]) -> float:
    """The mean over tasks of the share of pairs that `x` wins; a tie counts half."""
    pairs = zip(x, y, strict=True)
    wins = [np.greater.outer(a, b) + 0.5 * np.equal.outer(a, b) for a, b in pairs]
    return float(np.mean([own.mean() for own in wins]))


def test_probability_of_improvement_counts_pairs_of_runs() -> None:
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 6, size=n).astype(float) for n in (4, 7)]
    y = [rng.integers(0, 6, size=n).astype(float) for n in (5, 3)]
    found = probability_of_improvement(x, y)
    assert (found.value, found.count) == (pytest.approx(probability(x, y)), 11)
    assert probability_of_improvement(y, x).value == pytest.approx(1 - found.value)
    assert probability_of_improvement(x, x).value == pytest.approx(0.5)


def test_the_interval_of_a_probability_is_what_a_loop_over_resamples_gives() -> None:
    rng = np.random.default_rng(5)
    x = [rng.normal(0.5, 1, size=8), rng.normal(size=6)]
    y = [rng.normal(size=7), rng.normal(size=6)]
    drawn = [
        probability(*([rng.choice(task, len(task)) for task in arm] for arm in (x, y)))
        for _ in range(1500)
    ]
    found = probability_of_improvement(x, y)
    assert (found.low, found.high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.04)


def test_a_paired_difference_removes_what_the_seeds_share() -> None:
    shared = np.random.default_rng(0).normal(0, 100, size=10)
    x = {seed: 1 + shared[seed] + 0.1 * (seed % 3) for seed in range(10)}
    y = {seed: shared[seed] for seed in range(10)}
    found = paired_difference([x], [y])
    assert found.value == pytest.approx(slow_iqm([1 + 0.1 * (seed % 3) for seed in range(10)]))
    assert 1 <= found.low < found.high <= 1.2
    apart = stratified_interval([np.array(list(x.values()))]).low
    assert apart < -20  # unpaired, the seeds hide it


def test_seeds_that_one_arm_lacks_are_in_no_difference() -> None:
    found = paired_difference([{1: 5.0, 2: 7.0, 3: 1e9}], [{2: 4.0, 1: 3.0, 4: -1e9}])
    assert (found.value, found.count) == (2.5, 2)
    nothing = paired_difference([{1: 5.0}], [{2: 4.0}])
    assert math.isnan(nothing.value) and nothing.count == 0


@pytest.mark.parametrize(
    ("curves", "points", "aligned"),
    [
        (
            [([0, 10, 20], [0, 1, 3]), ([5, 15], [7, 9])],
            [0, 5, 10, 15, 20],
            [[0, 0.5, 1, 2, 3], [nan, 7, 8, 9, nan]],
        ),
        ([([1, 2, 2], [5, 6, 8])], [1, 2], [[5, 8]]),  # of several values at one x the last
        ([([1], [2]), ([], [])], [1], [[2], [nan]]),
        ([], [], np.empty((0, 0))),
    ],
)
def test_curves_meet_on_the_union_of_their_points_inside_their_own_range(
    curves: list, points: list, aligned: list
) -> None:
    found = align([(np.array(xs, float), np.array(ys, float)) for xs, ys in curves])
    np.testing.assert_array_equal(found[0], points)
    np.testing.assert_allclose(found[1], aligned)


def test_a_band_is_the_interval_of_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 4000)
    ys = np.random.default_rng(0).normal(size=(7, 5)) + np.arange(5)
    estimates = [stratified_interval([ys[:, point]]) for point in range(5)]
    expected = np.array([(own.value, own.low, own.high) for own in estimates]).T
    np.testing.assert_allclose(curve_band(ys), expected, atol=0.08)
    np.testing.assert_allclose(curve_band(ys)[0], expected[0])


def test_a_band_draws_the_same_seeds_at_all_points() -> None:
    seeds = np.random.default_rng(0).normal(size=(6, 1))
    band = curve_band(seeds + np.arange(50.0))  # curves that differ by a constant
    np.testing.assert_allclose(np.diff(band), 1)


def test_a_band_does_not_depend_on_how_many_points_are_computed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ys = np.random.default_rng(0).normal(size=(5, 9))
    whole = curve_band(ys)
    monkeypatch.setattr(statistics, "_CELLS", 1)
    np.testing.assert_array_equal(curve_band(ys), whole)


def test_a_band_leaves_out_runs_that_have_no_score_at_a_point() -> None:
    alone = curve_band(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(alone, [[1, 2], [nan] * 2, [nan] * 2])
    ys = np.array([[1.0, 1.0, nan, nan], [2.0, 5.0, 5.0, nan], [3.0, nan, nan, nan]])
    value, low, high = curve_band(ys)
    np.testing.assert_array_equal(value, [2, 3, 5, nan])
    np.testing.assert_array_equal([low[1], high[1]], [1, 5])
    assert np.isnan(low[2:]).all() and np.isnan(high[2:]).all()


@pytest.mark.parametrize(
    ("xs", "ys", "start", "expected"),
    [
        ([0, 1, 5, 10], [0, 3, 15, 30], None, 15),  # a straight line: its middle
        ([0, 1, 5, 10], [0, 3, 15, 30], 4, 21),
        ([0, 1, 5, 10], [0, 3, 15, 30], 5, 22.5),
        ([0, 1, 5, 10], [0, 3, 15, 30], -7, 15),
        ([4], [7], None, 7),
        ([], [], None, nan),
        ([1, 2], [1, 1], 3, nan),
        ([1, 2], [1, 5], 2, 5),
    ],
)
def test_an_area_is_the_mean_height(
    xs: list[float], ys: list[float], start: float | None, expected: float
) -> None:
    found = area_under_curve(np.array(xs, float), np.array(ys, float), start)
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("ys", "moment", "after", "higher", "expected"),
    [
        ([1, 5, 2, 4, 5], 25, 2, True, Drop(3, 25)),
        ([1, 5, 2, 4, 6], 30, 2, True, Drop(3, 20)),
        ([1, 5, 2, 4, 6], 30, 3, True, Drop(-2, 0)),
        ([1, 5, 2, 4, 4.9], 25, 2, True, Drop(3, None)),  # it never comes back
        ([9, 1, 3, 2, 1], 25, 2, False, Drop(2, 25)),  # a loss drops by rising
        ([1, 5, 2, 4, 5], 10, 0, True, None),  # no score before it
        ([1, 5, 2, 4, 5], 51, 5, True, None),  # no score after it
    ],
)
def test_a_drop_lies_between_the_evaluations_around_the_hook(
    ys: list[float], moment: float, after: int, higher: bool, expected: Drop | None
) -> None:
    xs = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    assert drop_and_recovery(xs, np.array(ys, float), moment, after, higher) == expected
