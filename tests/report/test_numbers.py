"""Numbers as a report writes them."""

from math import inf, nan

from rlplast.report.numbers import NOTHING, column, estimate, number


def test_a_number_has_three_significant_digits_and_a_count_is_whole():
    words = {0.0012345: "0.00123", 0.00012345: "1.23e-04", -1.005: "-1.00", 9.999: "10.0"}
    words |= {999.9: "1,000", 123456.0: "123,000", 1234567: "1,234,567", 1e9: "1.00e+09"}
    words |= {-0.0: "0", -inf: "-inf", nan: NOTHING, None: NOTHING}
    assert [number(own) for own in words] == list(words.values())


def test_a_narrow_interval_shows_two_of_its_digits():
    row = {"value": 1234.5678, "low": 1234.561, "high": 1234.574}
    assert estimate(row) == "1,234.568 [1,234.561, 1,234.574]"
    assert estimate(row | {"low": nan, "high": nan}) == "1,230"


def test_numbers_of_a_column_have_as_many_decimals():
    assert column([354, 35.8]) == ["354", "36"]
    assert column([35.8, -3.25, nan, -0.0]) == ["35.8", "-3.2", NOTHING, "0.0"]
    assert column([-0.01, 12.0]) == ["-0.0100", "12.0"]  # 0.0 would say too little of it
    assert column([1.5, inf]) == ["1.50", "inf"]
    assert column([99.94, 99.96]) == ["100", "100"]
    assert column([1500.0, 1600.0], [4.0, 60.0, nan]) == ["1,500.0", "1,600.0"]
    assert column([1500.0, 1600.0], [60.0, nan]) == ["1,500", "1,600"]
    assert column([2e9, 3.0]) == ["2.00e+09", "3.00"]
    assert column([0.0, nan]) == ["0", NOTHING] and column([]) == []
