"""Numbers of tables, and that their decimal points stand below one another."""

import pytest

from rlplast.report.aligned import Cell, aligned
from rlplast.report.numbers import count, estimate, judged, number, short
from rlplast.report.page import Row, Table
from rlplast.report.statistics import Estimate

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0012345, "0.00123"),
        (0.00012345, "1.23e-04"),
        (-1.005, "-1.00"),
        (9.999, "10.0"),
        (99.96, "100"),
        (999.9, "1,000"),
        (123456.0, "123,000"),
        (-0.0, "0"),
        (float("inf"), "inf"),
        (NAN, "–"),
        (None, "–"),
    ],
)
def test_a_number_has_three_significant_digits(value: float | None, expected: str):
    assert number(value) == expected


def test_counts_are_whole_and_large_ones_are_shortened():
    assert [count(own) for own in (1234567, 1234567.0, 2.5, NAN, float("inf"))] == [
        *("1,234,567", "1,234,567", "2.50", "–", "inf")
    ]
    assert [short(own) for own in (999, 1000, 2_500_000)] == ["999", "1k", "2.5M"]


def test_only_an_estimate_with_an_interval_is_judged():
    few, enough = Estimate(1.0, NAN, NAN, 2), Estimate(1.0, 0.5, 1.5, 5)
    assert (judged(None), judged(few), judged(enough)) == (None, None, enough)
    assert estimate(judged(few)) == "–"


def test_each_number_lacks_what_the_longest_has_behind_the_point():
    rows = tuple(Row((name, text)) for name, text in (("a", "354"), ("b", "35.8"), ("c", "0.320")))
    head, body = aligned(Table(("arm", "score"), rows))
    assert head == [Cell("arm"), Cell("score", number=True)]
    assert [cells[1].lacks for cells in body] == [".000", "00", ""]
    assert [cells[0] for cells in body] == [Cell("a"), Cell("b"), Cell("c")]


def test_an_estimate_has_three_cells_below_one_head():
    texts = ("0.32 [0.11, 0.5]", "–", "-17.3 [-43.9, 9.20]")
    head, body = aligned(Table(("arm", "difference"), tuple(Row(("a", text)) for text in texts)))
    assert head[1] == Cell("difference", number=True, span=3)
    assert [[cell.text for cell in cells[1:]] for cells in body] == [
        ["0.32", "[0.11,", "0.5]"],
        ["–", "", ""],
        ["-17.3", "[-43.9,", "9.20]"],
    ]
    assert [[cell.lacks for cell in cells[1:]] for cells in body] == [
        ["", "", "0"],
        ["", "", ""],
        ["0", "0", ""],
    ]
    assert [cell.end for cell in body[0][1:]] == [False, True, True]


def test_what_is_no_decimal_number_lacks_nothing():
    texts = ("5 of 5", "1,000 to 4,000", "1.25e+42", "")
    _, body = aligned(Table(("arm", "x"), tuple(Row(("a", text)) for text in texts)))
    assert [cells[1] for cells in body] == [Cell(text, number=True) for text in texts]
