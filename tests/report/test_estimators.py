"""Estimates, intervals and tests, against slow twins, SciPy and closed forms."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from rlplast.report import estimators as made

nan = math.nan


def slow_iqm(values: list[float]) -> float:
    """The mean of what is left without the lowest and the highest ⌊n/4⌋ values."""
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def slow_interval(values: list[float]) -> tuple[float, float]:
    """Student's interval with the larger one of the standard errors of two means, by hand."""
    count, cut = len(values), len(values) // 4
    ordered = sorted(values)
    moved = [min(max(own, ordered[cut]), ordered[-1 - cut]) for own in values]
    whole = statistics.stdev(values) / math.sqrt(count)
    trimmed = statistics.stdev(moved) * math.sqrt(count) / (count - 2 * cut)
    half = stats.t.isf(0.025, count - 1) * max(whole, trimmed)
    return slow_iqm(values) - half, slow_iqm(values) + half


@pytest.mark.parametrize("count", range(1, 14))
def test_an_estimate_is_the_mean_of_the_middle_with_the_larger_one_of_two_errors(count: int):
    larger = set()
    for seed in range(20):
        values = np.random.default_rng([count, seed]).normal(size=count)
        found = made.stratified_interval([values])
        assert (found.value, found.count) == (pytest.approx(slow_iqm(list(values))), count)
        if count < 5:
            assert math.isnan(found.low) and math.isnan(found.high)
            continue
        assert (found.low, found.high) == pytest.approx(slow_interval(list(values)))
        student = stats.t.interval(0.95, count - 1, found.value, stats.sem(values))
        larger.add(bool(found.low < student[0] - 1e-9))
    assert count < 5 or larger == {True, False}  # so either standard error is tested


def slow_tasks(tasks: list[list[float]]) -> tuple[float, float, bool]:
    """The larger variance of a pooled IQM, its degrees of freedom, and whether it is winsorised."""
    ordered = sorted(own for task in tasks for own in task)
    cut = len(ordered) // 4
    ends = ordered[cut], ordered[-1 - cut]
    moved = [[min(max(own, ends[0]), ends[1]) for own in task] for task in tasks]
    found = []
    for scores, kept in ((tasks, len(ordered)), (moved, len(ordered) - 2 * cut)):
        parts = [len(own) * statistics.variance(own) / kept**2 for own in scores]
        inverse = sum(v**2 / (len(own) - 1) for v, own in zip(parts, scores, strict=True))
        found.append((sum(parts), sum(parts) ** 2 / inverse, kept < len(ordered)))
    return max(found)


def test_several_tasks_have_the_larger_error_with_its_own_degrees_of_freedom():
    winsorised = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tasks = [rng.normal(k, 1 + 3 * k, size=n) for k, n in enumerate((5, 9, 6))]
        variance, freedom, larger = slow_tasks([list(own) for own in tasks])
        found = made.middle(tasks)
        assert (found.variance, found.freedom) == pytest.approx((variance, freedom))
        winsorised.add(larger)
    assert winsorised == {True, False}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[1.0, 2.0], [6.0]], (3, nan, nan)),
        ([[]], (nan, nan, nan)),
        ([[0.1] * 6, [0.1] * 4], (0.1, nan, nan)),  # one task has too few
        ([[0.1] * 6], (0.1, 0.1, 0.1)),  # of which a mean has a rounding error
    ],
)
def test_few_scores_have_no_interval_and_equal_ones_one_of_no_length(
    scores: list[list[float]], expected: tuple[float, float, float]
):
    found = made.stratified_interval([np.array(own) for own in scores])
    np.testing.assert_allclose((found.value, found.low, found.high), expected, rtol=1e-15)


def test_probability_of_improvement_counts_pairs_of_runs():
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 6, size=n).astype(float) for n in (4, 7)]
    y = [rng.integers(0, 6, size=n).astype(float) for n in (5, 3)]
    shares = [
        statistics.mean(1.0 if a > b else 0.5 * (a == b) for a in ours for b in theirs)
        for ours, theirs in zip(x, y, strict=True)
    ]
    found = made.probability_of_improvement(x, y)
    assert (found.value, found.count) == (pytest.approx(statistics.mean(shares)), 11)
    assert made.probability_of_improvement(y, x).value == pytest.approx(1 - found.value)
    for sizes in ((5, 4), (4, 5)):  # too few of either arm
        few = made.probability_of_improvement(
            *([np.arange(5.0), np.arange(float(n))] for n in sizes)
        )
        assert math.isnan(few.low) and math.isnan(few.high) and few.value == few.value


@pytest.mark.parametrize(("wins", "sizes"), [(17, (5, 7)), (49, (10, 5)), (30, (6, 10))])
def test_the_ends_of_a_probability_are_196_standard_errors_away(wins: int, sizes: tuple[int, int]):
    """Hanley & McNeil's variance at the end itself, with Newcombe's mean of the sizes."""
    share, (m, n) = wins / math.prod(sizes), sizes
    for end in made.newcombe_interval(np.array(share), [sizes]):
        q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
        star = (m + n) / 2 - 1
        variance = (end * (1 - end) + star * (q1 - end**2) + star * (q2 - end**2)) / (m * n)
        assert abs(end - share) == pytest.approx(stats.norm.isf(0.025) * math.sqrt(variance))


def test_a_probability_is_in_its_interval_and_that_within_0_and_1():
    shares = np.linspace(0, 1, 26)
    low, high = made.newcombe_interval(shares, [(5, 5)])
    assert (low >= 0).all() and (high <= 1).all()
    assert (low <= shares).all() and (shares <= high).all()
    np.testing.assert_allclose(low, 1 - high[::-1], atol=1e-12)  # the arms swapped
    assert low[-1] < 0.8  # of 25 pairs that are all won
    one, four = (made.newcombe_interval(np.array(0.7), [(8, 8)] * tasks) for tasks in (1, 4))
    assert four[1] - four[0] == pytest.approx((one[1] - one[0]) / 2, rel=0.15)


@pytest.mark.parametrize(
    ("curves", "points", "aligned"),
    [
        ([([0, 4], [0, 2]), ([1, 3], [7, 9])], [0, 1, 3, 4], [[0, 0.5, 1.5, 2], [nan, 7, 9, nan]]),
        ([([1, 2, 2], [5, 6, 8])], [1, 2], [[5, 8]]),  # of several values at one x the last
        ([([1], [2]), ([], [])], [1], [[2], [nan]]),
        ([], [], np.empty((0, 0))),
    ],
)
def test_curves_meet_on_the_union_of_their_points_inside_their_own_range(
    curves: list, points: list, aligned: list
):
    found = made.align([(np.array(xs, float), np.array(ys, float)) for xs, ys in curves])
    np.testing.assert_array_equal(found[0], points)
    np.testing.assert_allclose(found[1], aligned)


def test_a_band_is_the_interval_of_the_runs_that_have_a_point():
    ys = np.random.default_rng(0).normal(size=(9, 40)) + np.arange(40)
    ys[0, 10:20] = ys[3:8, 30:35] = ys[:, 39] = nan
    estimates = [made.stratified_interval([own[~np.isnan(own)]], (2.0, 30.0)) for own in ys.T]
    expected = np.array([(own.value, own.low, own.high) for own in estimates]).T
    found = made.curve_band(ys, (2.0, 30.0))
    np.testing.assert_allclose(found, expected)
    assert np.isnan(found[1]).sum() == 6 and found[1][0] == 2
    assert [len(own) for own in made.curve_band(np.empty((0, 3)))] == [3, 3, 3]


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
):
    found = made.area_under_curve(np.array(xs, float), np.array(ys, float), start)
    assert found == pytest.approx(expected, nan_ok=True)


def test_over_tasks_welch_is_the_mean_of_the_tasks():
    """Tasks weigh the same in both arms, however many seeds each has there."""
    x = [np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.full(9, 100.0) + np.arange(9)]
    y = [np.arange(9) - 4.0, np.array([100.0, 101.0, 102.0, 103.0, 104.0])]
    found = made.welch(x, y)
    assert found.value == pytest.approx(((3 - 0) + (104 - 102)) / 2)
    parts = [own.var(ddof=1) / len(own) / 4 for own in (*x, *y)]
    assert found.variance == pytest.approx(sum(parts))
    inverse = sum(v**2 / (len(own) - 1) for v, own in zip(parts, (*x, *y), strict=True))
    assert found.freedom == pytest.approx(sum(parts) ** 2 / inverse)


def test_differences_without_spread_are_sure_but_those_of_equal_seeds_are_no_test():
    """Five copies of one run would else be certain of a difference in the last digit."""
    zero = np.zeros(2)
    p = made.p_value_of(made.Mean(np.array([0.0, 0.5]), zero, zero + 4))
    np.testing.assert_array_equal(p, [1, 0])
    ours, theirs = ({seed: value for seed in range(5)} for value in (0.1 + 0.2, 0.3))
    assert made.compare_arms([ours], [theirs]).p_value is None
    equal = made.compare_arms([theirs], [theirs])
    assert (equal.difference.value, equal.p_value) == (0, 1)
