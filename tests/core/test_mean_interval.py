"""Intervals of a mean of few values, beside those of SciPy."""

import numpy as np
import pytest
from scipy import stats

from rlplast.core.mean_interval import FEWEST, interval_of_mean, student


@pytest.mark.parametrize("count", [5, 6, 20])
def test_other_values_than_0_and_1_have_students_interval(count: int) -> None:
    values = np.random.default_rng(count).normal(3, 2, size=count)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert interval_of_mean(list(values)) == pytest.approx((expected.low, expected.high))
    assert student(list(values)) == pytest.approx((values.mean(), expected.low, expected.high))


@pytest.mark.parametrize("count", [5, 10, 100])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_shares_have_wilsons_interval_within_0_and_1(count: int, share: float) -> None:
    won = round(share * count)
    low, high = interval_of_mean([1.0] * won + [0.0] * (count - won))
    expected = stats.binomtest(won, count).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low < high <= 1


@pytest.mark.parametrize("values", [[], [3.0], [1.0, 9.0], [1.0] * (FEWEST - 1), [500.0] * 10])
def test_few_or_equal_values_have_none(values: list[float]) -> None:
    assert interval_of_mean(values) is None
