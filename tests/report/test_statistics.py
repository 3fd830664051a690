"""Estimates with intervals, against slow twins and closed forms."""

import math
import statistics as python_statistics

import numpy as np
import pytest
from scipy import stats

from rlplast.report import statistics
from rlplast.report.statistics import (
    align,
    area_under_curve,
    by_seed,
    curve_band,
    interval_of,
    middle,
    newcombe_interval,
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


def slow_interval(values: list[float]) -> tuple[float, float]:
    """Student's interval with the larger one of the standard errors of two means, by hand."""
    count, cut = len(values), len(values) // 4
    ordered = sorted(values)
    moved = [min(max(own, ordered[cut]), ordered[-1 - cut]) for own in values]
    whole = python_statistics.stdev(values) / math.sqrt(count)
    trimmed = python_statistics.stdev(moved) * math.sqrt(count) / (count - 2 * cut)
    half = stats.t.isf(0.025, count - 1) * max(whole, trimmed)
    return slow_iqm(values) - half, slow_iqm(values) + half


@pytest.mark.parametrize("count", range(5, 14))
def test_an_interval_has_the_larger_one_of_two_standard_errors(count: int) -> None:
    larger = set()
    for seed in range(20):
        values = np.random.default_rng([count, seed]).normal(size=count)
        found = stratified_interval([values])
        assert (found.low, found.high) == pytest.approx(slow_interval(list(values)))
        student = stats.t.interval(0.95, count - 1, found.value, stats.sem(values))
        larger.add(found.low < student[0] - 1e-9)
    assert larger == {True, False}  # so either standard error is tested


def test_with_three_seeds_a_mean_is_students() -> None:
    """Nothing is trimmed of three: the interval would be that of scipy's t-test."""
    values = np.array([1.0, 4.0, 2.5])
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert interval_of(middle([values])) == pytest.approx(tuple(expected))


def test_what_lies_outside_the_middle_half_only_counts_in_the_plain_error() -> None:
    """Of eight scores two are cut at either end, in the winsorised ones the rest are moved."""
    values = np.array([0.0, 1.0, 10.0, 10.0, 30.0, 30.0, 31.0, 32.0])
    winsorised = np.array([10.0] * 4 + [30.0] * 4)
    found = middle([values])
    assert found.value == 20
    assert found.variance == pytest.approx(winsorised.var(ddof=1) * 8 / 4**2)
    assert found.variance > values.var(ddof=1) / 8
    assert found.freedom == pytest.approx(7)


def test_how_far_tasks_are_apart_is_in_no_interval() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=8), rng.normal(size=8)
    apart = stratified_interval([near, near + 1000, far, far + 1000])
    together = stratified_interval([near, near, far, far])
    assert apart.high - apart.low < 2 * (together.high - together.low)
    assert apart.value == pytest.approx(500, abs=2)


def slow_tasks(tasks: list[list[float]]) -> tuple[float, float, bool]:
    """The larger variance of a pooled IQM, its degrees of freedom, and whether it is winsorised."""
    ordered = sorted(own for task in tasks for own in task)
    cut = len(ordered) // 4
    ends = ordered[cut], ordered[-1 - cut]
    moved = [[min(max(own, ends[0]), ends[1]) for own in task] for task in tasks]
    found = []
    for scores, kept in ((tasks, len(ordered)), (moved, len(ordered) - 2 * cut)):
        parts = [len(own) * python_statistics.variance(own) / kept**2 for own in scores]
        inverse = sum(v**2 / (len(own) - 1) for v, own in zip(parts, scores, strict=True))
        found.append((sum(parts), sum(parts) ** 2 / inverse, kept < len(ordered)))
    return max(found)


def test_several_tasks_have_the_larger_error_with_its_own_degrees_of_freedom() -> None:
    winsorised = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tasks = [rng.normal(k, 1 + 3 * k, size=n) for k, n in enumerate((5, 9, 6))]
        variance, freedom, larger = slow_tasks([list(own) for own in tasks])
        found = middle(tasks)
        assert (found.variance, found.freedom) == pytest.approx((variance, freedom))
        winsorised.add(larger)
    assert winsorised == {True, False}


def test_tasks_without_trimming_are_joined_as_satterthwaite_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nothing cut off, the mean of two tasks is Welch's, with a plus for its minus."""
    monkeypatch.setattr(statistics, "_TRIM", 0.0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), rng.normal(2, 5, size=9)
    welch = stats.ttest_ind(x, -y, equal_var=False).confidence_interval()
    found = stratified_interval([x, y])
    assert (found.low, found.high) == pytest.approx((welch.low / 2, welch.high / 2))


def test_intervals_draw_nothing() -> None:
    tasks = [np.random.default_rng(0).normal(size=n) for n in (8, 5)]
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    assert stratified_interval(tasks) == stratified_interval(tasks)
    assert np.random.random() == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[1.0, 2.0], [6.0]], (3, nan, nan)),
        ([[]], (nan, nan, nan)),
        ([[1.0, 2.0, 3.0, 6.0]], (2.5, nan, nan)),
        ([[0.1] * 6, [0.1] * 4], (0.1, nan, nan)),  # one task has too few
        ([[2.0] * 5], (2, 2, 2)),
        ([[0.1] * 6], (0.1, 0.1, 0.1)),
    ],
)
def test_there_is_no_interval_below_five_seeds_and_equal_ones_have_one_of_no_length(
    scores: list[list[float]], expected: tuple[float, float, float]
) -> None:
    found = stratified_interval([np.array(own) for own in scores])
    np.testing.assert_allclose((found.value, found.low, found.high), expected, rtol=1e-15)


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


@pytest.mark.parametrize(("wins", "sizes"), [(17, (5, 7)), (49, (10, 5)), (30, (6, 10))])
def test_the_ends_of_a_probability_are_196_standard_errors_away(
    wins: int, sizes: tuple[int, int]
) -> None:
    """Hanley & McNeil's variance at the end itself, with Newcombe's mean of the sizes."""
    share, (m, n) = wins / math.prod(sizes), sizes
    for end in newcombe_interval(np.array(share), [sizes]):
        q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
        star = (m + n) / 2 - 1
        variance = (end * (1 - end) + star * (q1 - end**2) + star * (q2 - end**2)) / (m * n)
        assert abs(end - share) == pytest.approx(stats.norm.isf(0.025) * math.sqrt(variance))


def test_a_probability_is_in_its_interval_and_that_within_0_and_1() -> None:
    shares = np.linspace(0, 1, 26)
    low, high = newcombe_interval(shares, [(5, 5)])
    assert (low >= 0).all() and (high <= 1).all()
    assert (low <= shares).all() and (shares <= high).all()
    np.testing.assert_allclose(low, 1 - high[::-1], atol=1e-12)  # the arms swapped
    assert (low[0], high[-1]) == (0, 1)
    assert low[-1] < 0.8 and high[0] > 0.2  # of 25 pairs that are all won


def test_more_tasks_have_a_shorter_interval_than_one() -> None:
    one = newcombe_interval(np.array(0.7), [(8, 8)])
    four = newcombe_interval(np.array(0.7), [(8, 8)] * 4)
    assert (four[1] - four[0]) == pytest.approx((one[1] - one[0]) / 2, rel=0.15)


def test_a_probability_has_no_interval_if_either_arm_has_too_few_seeds() -> None:
    five, four = np.arange(5.0), np.arange(4.0)
    assert not math.isnan(probability_of_improvement([five], [five]).low)
    for x, y in (([five], [four]), ([four], [five]), ([five, five], [five, four])):
        found = probability_of_improvement(x, y)
        assert math.isfinite(found.value) and math.isnan(found.low) and math.isnan(found.high)


def test_a_paired_difference_removes_what_the_seeds_share() -> None:
    shared = np.random.default_rng(0).normal(0, 100, size=10)
    x = {seed: 1 + shared[seed] + 0.1 * (seed % 3) for seed in range(10)}
    y = {seed: shared[seed] for seed in range(10)}
    found = stratified_interval(by_seed([x], [y]))
    assert found.value == pytest.approx(slow_iqm([1 + 0.1 * (seed % 3) for seed in range(10)]))
    assert 0.9 <= found.low < found.high <= 1.3
    apart = stratified_interval([np.array(list(x.values()))]).low
    assert apart < -20  # unpaired, the seeds hide it


def test_seeds_that_one_arm_lacks_are_in_no_difference() -> None:
    found = stratified_interval(by_seed([{1: 5.0, 2: 7.0, 3: 1e9}], [{2: 4.0, 1: 3.0, 4: -1e9}]))
    assert (found.value, found.count) == (2.5, 2)
    nothing = stratified_interval(by_seed([{1: 5.0}], [{2: 4.0}]))
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


def test_a_band_is_the_interval_of_each_point() -> None:
    ys = np.random.default_rng(0).normal(size=(9, 40)) + np.arange(40)
    ys[0, 10:20] = ys[3:8, 30:35] = nan
    estimates = [stratified_interval([own[~np.isnan(own)]]) for own in ys.T]
    expected = np.array([(own.value, own.low, own.high) for own in estimates]).T
    np.testing.assert_allclose(curve_band(ys), expected)
    assert np.isnan(expected[1]).sum() == 5


def test_a_band_leaves_out_runs_that_have_no_score_at_a_point() -> None:
    alone = curve_band(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(alone, [[1, 2], [nan] * 2, [nan] * 2])
    ys = np.array([[1.0, 1.0, nan, nan], [2.0, 5.0, 5.0, nan], [3.0, nan, nan, nan]])
    value, low, high = curve_band(ys)
    np.testing.assert_array_equal(value, [2, 3, 5, nan])
    assert np.isnan(low).all() and np.isnan(high).all()
    assert [len(own) for own in curve_band(np.empty((0, 3)))] == [3, 3, 3]


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
