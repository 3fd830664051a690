"""Numbers as a report writes them."""

from math import inf, nan

from rlplast.report.numbers import NOTHING, estimate, number


def test_a_number_has_three_significant_digits_and_a_count_is_whole():
    words = {0.0012345: "0.00123", 0.00012345: "1.23e-04", -1.005: "-1.00", 9.999: "10.0"}
    words |= {999.9: "1,000", 123456.0: "123,000", 1234567: "1,234,567", 1e9: "1.00e+09"}
    words |= {-0.0: "0", -inf: "-inf", nan: NOTHING, None: NOTHING}
    assert [number(own) for own in words] == list(words.values())


def test_a_narrow_interval_shows_two_of_its_digits():
    row = {"value": 1234.5678, "low": 1234.561, "high": 1234.574}
    assert estimate(row) == "1,234.568 [1,234.561, 1,234.574]"
    assert estimate(row | {"low": nan, "high": nan}) == "1,230"
