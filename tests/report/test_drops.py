"""Drops, recoveries and lost areas, by hand and by integrals."""

import numpy as np
import pytest

from rlplast.report.drops import Drop, drop_and_recovery, lost_area


@pytest.mark.parametrize(
    ("ys", "moment", "after", "higher", "expected"),
    [
        ([1, 5, 2, 4, 5], 25, 2, True, Drop(3, 25, 40)),
        ([1, 5, 2, 4, 6], 30, 2, True, Drop(3, 20, 22.5)),
        ([1, 5, 2, 4, 6], 30, 3, True, Drop(-2, 0, 0)),
        ([1, 5, 2, 4, 4.9], 25, 2, True, Drop(3, None, 40.5)),  # it never comes back
        ([9, 1, 3, 2, 1], 25, 2, False, Drop(2, 25, 30)),  # a loss drops by rising
        ([1, 5, 2, 4, 5], 10, 0, True, None),  # no score before it
        ([1, 5, 2, 4, 5], 51, 5, True, None),  # no score after it
    ],
)
def test_a_drop_lies_between_the_evaluations_around_the_hook(
    ys: list[float], moment: float, after: int, higher: bool, expected: Drop | None
) -> None:
    xs = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    assert drop_and_recovery(xs, np.array(ys, float), moment, after, higher) == expected


@pytest.mark.parametrize("end", [2.0, 5.0, 9.0])
def test_a_lost_area_is_the_integral_until_the_curve_is_back(end: float) -> None:
    # 1 − e^(−x) + 1/8 against 1: lost is e^(−x) − 1/8, back at x = ln 8, and above it later.
    xs = np.linspace(0, end, 20_001)
    stop = min(end, float(np.log(8)))
    expected = 1 - np.exp(-stop) - stop / 8
    assert lost_area(xs, 9 / 8 - np.exp(-xs), 1.0) == pytest.approx(expected, rel=1e-6)


def test_nothing_is_lost_by_a_curve_that_begins_at_the_level() -> None:
    assert lost_area(np.array([0.0, 1, 2]), np.array([3.0, 1, 1]), 3.0) == 0
    assert lost_area(np.array([4.0]), np.array([1.0]), 3.0) == 0  # it has no length yet
