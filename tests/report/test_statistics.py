"""Estimates with intervals, against slow twins, closed forms and SciPy."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rlplast.report.statistics import (
    align,
    area_under_curve,
    curve_band,
    drop_and_recovery,
    iqm,
    paired_difference,
    probability_of_improvement,
    stratified_interval,
)


def slow_iqm(values: list[float]) -> float:
    """The mean of what is left without the lowest and the highest ⌊n/4⌋ values."""
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("count", range(1, 14))
def test_iqm_is_the_mean_of_the_middle(count: int) -> None:
    values = list(np.random.default_rng(count).normal(size=count))
    assert iqm(values) == pytest.approx(slow_iqm(values), abs=1e-14)


def test_iqm_ignores_one_wild_run_in_four_and_no_more() -> None:
    assert iqm([1, 2, 3, 1e9]) == 2.5
    assert iqm([1, 2, 1e9]) > 1e8
    assert iqm(np.arange(1, 9)) == 4.5


def test_iqm_of_rows_is_that_of_each_row() -> None:
    values = np.random.default_rng(0).normal(size=(3, 9))
    np.testing.assert_allclose(iqm(values, axis=1), [slow_iqm(list(row)) for row in values])
    assert iqm(values) == pytest.approx(slow_iqm(list(values.ravel())))


def test_iqm_hides_no_number_that_is_missing() -> None:
    assert math.isnan(iqm([1, 2, 3, math.nan]))
    assert math.isnan(iqm([]))
    rows = iqm(np.array([[1, 2, 3, 4], [1, math.nan, 3, 4]]), axis=1)
    np.testing.assert_array_equal(rows, [2.5, math.nan])


def test_a_stratified_interval_is_of_resamples_within_each_task() -> None:
    """All 27 × 4 equally likely resamples of tasks with 3 and 2 seeds, listed."""
    tasks = [np.array([1.0, 2.0, 6.0]), np.array([10.0, 14.0])]
    draws = [itertools.product(task, repeat=len(task)) for task in tasks]
    exact = [float(np.mean(a + b)) for a, b in itertools.product(*draws)]
    found = stratified_interval(tasks, np.mean, resamples=20_000)
    low, high = np.percentile(exact, [2.5, 97.5])
    assert found.value == pytest.approx(33 / 5)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.2)
    unstratified = np.random.default_rng(0).choice(np.concatenate(tasks), (20_000, 5)).mean(axis=1)
    assert np.percentile(unstratified, 2.5) < low - 1  # so the assertion above tells them apart


def test_an_interval_of_iqms_is_what_a_loop_over_resamples_gives() -> None:
    rng = np.random.default_rng(1)
    tasks = [rng.normal(size=6), rng.normal(2, 1, size=9)]
    means = []
    for _ in range(4000):
        pooled = [value for task in tasks for value in rng.choice(task, len(task))]
        means.append(slow_iqm(pooled))
    found = stratified_interval(tasks, resamples=4000)
    assert (found.low, found.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.06)
    assert found.value == pytest.approx(slow_iqm(list(np.concatenate(tasks))))
    assert found.count == 15


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(200):
        found = stratified_interval(
            [rng.normal(3, 1, size=30)], level=0.9, resamples=400, seed=seed
        )
        hits += found.low < 3 < found.high  # of a symmetrical law mean and IQM are one
    assert 0.82 <= hits / 200 <= 0.95


def test_intervals_repeat_and_depend_on_level_and_seed() -> None:
    rng = np.random.default_rng(0)
    tasks = [rng.normal(size=8), rng.normal(size=5)]
    once, again = stratified_interval(tasks, seed=3), stratified_interval(tasks, seed=3)
    assert once == again
    assert once != stratified_interval(tasks, seed=4)
    narrow = stratified_interval(tasks, level=0.5, seed=3)
    assert once.low < narrow.low < narrow.high < once.high


def test_no_global_generator_is_touched() -> None:
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    stratified_interval([np.arange(8.0)])
    curve_band(np.random.default_rng(0).normal(size=(4, 3)))
    assert np.random.random() == expected


def test_one_seed_has_a_value_and_no_interval() -> None:
    found = stratified_interval([np.array([1.0, 2.0]), np.array([6.0])])
    assert found.value == 3
    assert math.isnan(found.low) and math.isnan(found.high)
    nothing = stratified_interval([np.array([])])
    assert math.isnan(nothing.value) and nothing.count == 0


def test_equal_scores_have_an_interval_of_no_length() -> None:
    found = stratified_interval([np.full(5, 2.0)])
    assert (found.value, found.low, found.high) == (2, 2, 2)


def slow_probability(x: list[np.ndarray], y: list[np.ndarray]) -> float:
    tasks = []
    for ours, theirs in zip(x, y, strict=True):
        wins = 0.0
        for a in ours:
            for b in theirs:
                wins += 1.0 if a > b else 0.5 if a == b else 0.0
        tasks.append(wins / (len(ours) * len(theirs)))
    return sum(tasks) / len(tasks)


def test_probability_of_improvement_counts_pairs_of_runs() -> None:
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 6, size=n).astype(float) for n in (4, 7)]
    y = [rng.integers(0, 6, size=n).astype(float) for n in (5, 3)]
    found = probability_of_improvement(x, y)
    assert found.value == pytest.approx(slow_probability(x, y))
    statistics = [stats.mannwhitneyu(a, b).statistic for a, b in zip(x, y, strict=True)]
    shares = [u / (len(a) * len(b)) for u, a, b in zip(statistics, x, y, strict=True)]
    assert found.value == pytest.approx(np.mean(shares))
    assert probability_of_improvement(y, x).value == pytest.approx(1 - found.value)


def test_its_interval_is_what_a_loop_over_resamples_gives() -> None:
    rng = np.random.default_rng(5)
    x = [rng.normal(0.5, 1, size=8), rng.normal(size=6)]
    y = [rng.normal(size=7), rng.normal(size=6)]
    drawn = [
        slow_probability(*([rng.choice(task, len(task)) for task in arm] for arm in (x, y)))
        for _ in range(1500)
    ]
    found = probability_of_improvement(x, y)
    assert (found.low, found.high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.04)


def test_certain_wins_and_ties() -> None:
    low, high = [np.array([1.0, 2.0])], [np.array([3.0, 4.0])]
    assert probability_of_improvement(high, low).value == 1
    assert probability_of_improvement(low, high).value == 0
    assert probability_of_improvement(low, low).value == 0.5


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


def test_curves_meet_on_the_union_of_their_points_inside_their_own_range() -> None:
    one = np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 3.0])
    other = np.array([5.0, 15.0]), np.array([7.0, 9.0])
    points, ys = align([one, other])
    np.testing.assert_array_equal(points, [0, 5, 10, 15, 20])
    nan = math.nan
    np.testing.assert_allclose(ys, [[0, 0.5, 1, 2, 3], [nan, 7, 8, 9, nan]])


def test_of_several_values_at_one_point_the_last_counts() -> None:
    points, ys = align([(np.array([1.0, 2.0, 2.0]), np.array([5.0, 6.0, 8.0]))])
    np.testing.assert_array_equal(points, [1, 2])
    np.testing.assert_array_equal(ys, [[5, 8]])


def test_nothing_to_align() -> None:
    points, ys = align([])
    assert points.shape == (0,) and ys.shape == (0, 0)
    points, ys = align([(np.array([1.0]), np.array([2.0])), (np.empty(0), np.empty(0))])
    np.testing.assert_array_equal(ys, [[2], [math.nan]])


def test_a_band_is_the_interval_of_each_point() -> None:
    ys = np.random.default_rng(0).normal(size=(7, 5)) + np.arange(5)
    value, low, high = curve_band(ys, resamples=4000)
    for point in range(5):
        own = stratified_interval([ys[:, point]], resamples=4000)
        assert value[point] == pytest.approx(own.value)
        assert (low[point], high[point]) == pytest.approx((own.low, own.high), abs=0.08)


def test_a_band_draws_the_same_seeds_at_all_points() -> None:
    seeds = np.random.default_rng(0).normal(size=(6, 1))
    value, low, high = curve_band(seeds + np.arange(50.0))  # curves that differ by a constant
    np.testing.assert_allclose(np.diff(low), 1)
    np.testing.assert_allclose(np.diff(high), 1)
    np.testing.assert_allclose(np.diff(value), 1)


def test_a_band_does_not_depend_on_how_many_points_are_computed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ys = np.random.default_rng(0).normal(size=(5, 9))
    whole = curve_band(ys)
    monkeypatch.setattr("rlplast.report.statistics._CELLS", 1)
    for one, other in zip(whole, curve_band(ys), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_band_leaves_out_runs_that_have_no_score_at_a_point() -> None:
    nan = math.nan
    ys = np.array([[1.0, 1.0, nan, nan], [2.0, 5.0, 5.0, nan], [3.0, nan, nan, nan]])
    value, low, high = curve_band(ys)
    np.testing.assert_array_equal(value, [2, 3, 5, nan])
    np.testing.assert_array_equal([low[1], high[1]], [1, 5])
    assert np.isnan(low[2:]).all() and np.isnan(high[2:]).all()


def test_one_run_has_a_curve_and_no_band() -> None:
    value, low, _ = curve_band(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(value, [1, 2])
    assert np.isnan(low).all()


def test_the_area_of_a_straight_line_is_its_middle() -> None:
    xs = np.array([0.0, 1.0, 5.0, 10.0])
    assert area_under_curve(xs, 3 * xs) == pytest.approx(15)
    assert area_under_curve(xs, 3 * xs, start=4) == pytest.approx(21)
    assert area_under_curve(xs, 3 * xs, start=5) == pytest.approx(22.5)
    assert area_under_curve(xs, 3 * xs, start=-7) == pytest.approx(15)


def test_the_area_of_next_to_nothing() -> None:
    assert area_under_curve(np.array([4.0]), np.array([7.0])) == 7
    assert math.isnan(area_under_curve(np.empty(0), np.empty(0)))
    assert math.isnan(area_under_curve(np.array([1.0, 2.0]), np.array([1.0, 1.0]), start=3))
    assert area_under_curve(np.array([1.0, 2.0]), np.array([1.0, 5.0]), start=2) == 5


XS = np.array([10.0, 20.0, 30.0, 40.0, 50.0])


def test_a_drop_lies_between_the_evaluations_around_the_hook() -> None:
    drop = drop_and_recovery(XS, np.array([1.0, 5.0, 2.0, 4.0, 5.0]), branch_x=25)
    assert drop is not None
    assert (drop.before, drop.after, drop.drop, drop.recovered_after) == (5, 2, 3, 25)


def test_an_evaluation_at_the_hook_is_after_it_unless_said_otherwise() -> None:
    ys = np.array([1.0, 5.0, 2.0, 4.0, 6.0])
    after = drop_and_recovery(XS, ys, branch_x=30)
    assert after is not None and (after.before, after.after) == (5, 2)
    assert after.recovered_after == 20
    before = drop_and_recovery(XS, ys, branch_x=30, first_after=3)
    assert before is not None and (before.before, before.after) == (2, 4)
    assert (before.drop, before.recovered_after) == (-2, 0)


def test_a_score_that_never_comes_back() -> None:
    drop = drop_and_recovery(XS, np.array([1.0, 5.0, 2.0, 4.0, 4.9]), branch_x=25)
    assert drop is not None and drop.recovered_after is None


def test_a_loss_drops_by_rising() -> None:
    ys = np.array([9.0, 1.0, 3.0, 2.0, 1.0])
    drop = drop_and_recovery(XS, ys, 25, higher_is_better=False)
    assert drop is not None and (drop.drop, drop.recovered_after) == (2, 25)


@pytest.mark.parametrize("branch_x", [0, 10, 51])
def test_no_drop_without_a_score_on_either_side(branch_x: float) -> None:
    assert drop_and_recovery(XS, XS, branch_x) is None
    assert drop_and_recovery(np.empty(0), np.empty(0), branch_x) is None
