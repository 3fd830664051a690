"""Numbers as a report writes them: three significant digits, more where an interval is narrow."""

import math
from typing import Any

__all__ = ["NOTHING", "estimate", "number"]

NOTHING = "–"


def number(value: float | None, width: float = math.inf) -> str:
    """Return a number with three significant digits, a count whole, a dash where there is none.

    Of its interval's `width` at least two digits are shown.

    Examples:
        >>> number(0.123456), number(1234567.0), number(1.25e42), number(2.0), number(None)
        ('0.123', '1,230,000', '1.25e+42', '2.00', '–')
        >>> number(-300_518.2, width=437), number(0.99912, width=0.0004), number(29750)
        ('-300,520', '0.99912', '29,750')
    """
    if value is None or value != value:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # no -0
    rounded = f"{value:.2e}"
    exponent = int(rounded.partition("e")[2])
    if not -4 < exponent < 9:
        return rounded
    place = exponent - 2  # the power of ten of the last digit that is shown
    if math.isfinite(width) and width > 0:
        fine = max(math.floor(math.log10(width)) - 1, exponent - 14)  # a float has 15 digits
        place = min(place, fine)
    return f"{round(value, -place):,.{max(0, -place)}f}"


def estimate(row: Any, name: str = "value") -> str:
    """Return the value `name` of a row with its interval, NAME_low and NAME_high, or low and high.

    Examples:
        >>> estimate({"value": 1.25, "low": 1.0, "high": 1.5})
        '1.25 [1.00, 1.50]'
        >>> estimate({"final": 2.0, "final_low": float("nan"), "final_high": float("nan")}, "final")
        '2.00'
    """
    ends = ("low", "high") if name == "value" else (f"{name}_low", f"{name}_high")
    value, low, high = (row[key] for key in (name, *ends))
    if low is None or low != low:
        return number(value)
    return "{} [{}, {}]".format(*(number(own, high - low) for own in (value, low, high)))
