"""Tests of arms, against scipy's and closed forms; corrections against the closed test."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rlplast.report.comparison import compare, holm, p_value_of, welch
from rlplast.report.statistics import Mean, middle

Scores = dict[int, float]


def arm(seed: int, seeds: range = range(5), shift: float = 0.0) -> Scores:
    rng = np.random.default_rng(seed)
    return {own: shift + float(rng.normal()) for own in seeds}


@pytest.mark.parametrize("paired", [True, False])
def test_an_interval_leaves_out_0_where_the_p_value_is_below_5_percent(paired: bool) -> None:
    seen = set()
    for number in range(60):
        seeds = range(6) if paired else range(20, 26)
        x = arm(number, seeds, shift=number / 30)
        found = compare([x, x], [arm(100 + number, range(6)), arm(200 + number, range(6))])
        assert found.paired is paired
        assert found.p_value is not None
        outside = not found.difference.low <= 0 <= found.difference.high
        assert outside == (found.p_value < 0.05)
        seen.add(outside)
    assert seen == {True, False}


def test_seeds_that_both_have_are_compared_by_seed() -> None:
    x, y = arm(1, range(2, 9), shift=1), arm(2, range(0, 8))
    found = compare([x], [y])
    differences = np.array([x[seed] - y[seed] for seed in range(2, 8)])
    ours = middle([differences])
    assert found.paired and found.difference.count == 6
    distance = abs(ours.value) / math.sqrt(ours.variance)
    assert found.p_value == pytest.approx(2 * stats.t.sf(distance, 5))


def test_pairs_of_equal_middle_are_tested_as_by_students_test() -> None:
    """Where the plain error is the larger one and means agree, the test is the paired t-test."""
    differences = np.array([-3.0, 0.9, 1.0, 1.1, 5.0])
    x, y = dict(enumerate(differences)), dict.fromkeys(range(5), 0.0)
    found = compare([x], [y])
    assert found.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


def test_other_seeds_are_compared_by_welch() -> None:
    x, y = arm(1, range(7), shift=1), arm(2, range(50, 55))
    found = compare([x], [y])
    expected = stats.ttest_ind(list(x.values()), list(y.values()), equal_var=False)
    ends = expected.confidence_interval()
    assert not found.paired and found.difference.count == 0
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx((ends.low, ends.high))


def test_over_tasks_welch_is_the_mean_of_the_tasks() -> None:
    """Tasks weigh the same in both arms, however many seeds each has there."""
    x = [np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.full(9, 100.0) + np.arange(9)]
    y = [np.arange(9) - 4.0, np.array([100.0, 101.0, 102.0, 103.0, 104.0])]
    found = welch(x, y)
    assert found.value == pytest.approx(((3 - 0) + (104 - 102)) / 2)
    parts = [own.var(ddof=1) / len(own) / 4 for own in (*x, *y)]
    assert found.variance == pytest.approx(sum(parts))
    sizes = [len(own) - 1 for own in (*x, *y)]
    inverse = sum(v**2 / n for v, n in zip(parts, sizes, strict=True))
    assert found.freedom == pytest.approx(sum(parts) ** 2 / inverse)


def test_fewer_than_five_seeds_have_no_test() -> None:
    few = compare([arm(1, range(4))], [arm(2, range(4))])
    assert few.p_value is None and few.paired and math.isnan(few.difference.low)
    assert few.difference.count == 4 and math.isfinite(few.difference.value)
    one_task = compare([arm(1), arm(2)], [arm(3), arm(4, range(4))])
    assert one_task.p_value is None
    none = compare([arm(1, range(3))], [arm(2, range(9, 12))])
    assert none.p_value is None and math.isnan(none.difference.value)


def test_differences_without_spread_are_sure() -> None:
    y = arm(1)
    equal = compare([y], [y])
    assert (equal.difference.value, equal.p_value) == (0, 1)
    zero = np.zeros(2)
    p = p_value_of(Mean(np.array([0.0, 0.5]), zero, zero + 4))
    np.testing.assert_array_equal(p, [1, 0])


def closed_test(p_values: list[float]) -> list[float]:
    """For each hypothesis the largest Bonferroni p-value of all intersections it is in."""
    count = len(p_values)
    sets = [
        own for size in range(1, count + 1) for own in itertools.combinations(range(count), size)
    ]
    return [
        max(min(1.0, len(own) * min(p_values[k] for k in own)) for own in sets if i in own)
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_holms_correction_is_the_closed_test_of_bonferroni(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p_values = [float(p) for p in rng.choice([0.001, 0.01, 0.02, 0.03, 0.2, 0.7], seed)]
    assert holm(p_values) == pytest.approx(closed_test(p_values))


def test_one_p_value_stays_as_it_is() -> None:
    assert holm([0.3]) == [0.3]
    assert holm([]) == []


def test_seeds_that_do_not_differ_are_no_test() -> None:
    """Five copies of one run would else be certain of a difference in the last digit."""
    ours, theirs = ({seed: value for seed in range(5)} for value in (0.1 + 0.2, 0.3))
    assert compare([ours], [theirs]).p_value is None
    assert compare([theirs], [theirs]).p_value == 1
