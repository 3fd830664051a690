"""Numbers as a report writes them."""

import math

import numpy as np
import pytest

from rlplast.report.numbers import NOTHING, column, estimate, number

NAN = math.nan


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0012345, "0.00123"),
        (0.00012345, "1.23e-04"),
        (-1.005, "-1.00"),
        (9.999, "10.0"),
        (999.9, "1,000"),
        (123456.0, "123,000"),
        (1234567, "1,234,567"),
        (1e9, "1.00e+09"),
        (-0.0, "0"),
        (-math.inf, "-inf"),
        (NAN, NOTHING),
        (None, NOTHING),
    ],
)
def test_a_number_has_three_significant_digits_and_a_count_is_whole(value, expected: str):
    assert number(value) == expected


def test_a_narrow_interval_shows_two_of_its_digits():
    row = {"value": 1234.5678, "low": 1234.561, "high": 1234.574}
    assert estimate(row) == "1,234.568 [1,234.561, 1,234.574]"
    assert estimate(row | {"low": NAN, "high": NAN}) == "1,230"


@pytest.mark.parametrize(
    ("values", "widths", "expected"),
    [
        ([354, 35.8, 0.5], (), ["354", "36", "0"]),
        ([35.8, -3.25, NAN, 0.0], (), ["35.8", "-3.2", NOTHING, "0.0"]),
        ([-0.01, 12.0], (), ["-0.0100", "12.0"]),  # 0.0 would say too little of it
        ([1.5, math.inf], (), ["1.50", "inf"]),
        ([99.94, 99.96], (), ["100", "100"]),
        ([1500.0, 1600.0], [4.0, 6.0, NAN, 90.0], ["1,500.0", "1,600.0"]),
        ([2e9, 3.0], (), ["2.00e+09", "3.00"]),
        ([0.0, NAN], (), ["0", NOTHING]),
        ([], (), []),
    ],
)
def test_numbers_of_a_column_line_up(values, widths, expected: list[str]):
    assert column(values, widths) == expected


def test_columns_round_to_the_nearest_and_have_as_many_decimals():
    draws = np.random.default_rng(5)
    for _ in range(50):
        values = draws.uniform(0.2, 1, 6) * 10.0 ** draws.integers(-2, 8)
        texts = column(list(values), [values.max() / 10.0 ** draws.integers(0, 6)])
        decimals = {len(text.partition(".")[2]) for text in texts}
        assert len(decimals) == 1
        shown = [float(text.replace(",", "")) for text in texts]
        most = max(values) * 0.01 if decimals == {0} else 0.5 * 10.0 ** -decimals.pop()
        assert np.abs(np.array(shown) - values).max() <= most * 1.0001
