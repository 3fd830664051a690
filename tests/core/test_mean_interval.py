"""Intervals of a mean of few values, beside those of SciPy."""

import numpy as np
import pytest
from scipy import stats

from rlplast.core.mean_interval import FEWEST, interval_of_mean, student


def test_other_values_than_0_and_1_have_students_interval() -> None:
    for count in (5, 6, 20):
        values = np.random.default_rng(count).normal(3, 2, size=count)
        expected = stats.ttest_1samp(values, 0).confidence_interval()
        low, high = expected.low, expected.high
        assert interval_of_mean(list(values)) == pytest.approx((low, high))
        assert student(list(values)) == pytest.approx((values.mean(), low, high))


def test_shares_have_wilsons_interval_within_0_and_1() -> None:
    for count in (5, 10, 100):
        for share in (0.0, 0.2, 0.6, 1.0):
            won = round(share * count)
            low, high = interval_of_mean([1.0] * won + [0.0] * (count - won))
            expected = stats.binomtest(won, count).proportion_ci(method="wilson")
            assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
            assert 0 <= low < high <= 1


def test_few_or_equal_values_have_none() -> None:
    for values in ([], [3.0], [1.0, 9.0], [1.0] * (FEWEST - 1), [500.0] * 10):
        assert interval_of_mean(values) is None
