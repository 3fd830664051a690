"""Numbers as a report writes them: three significant digits, more where an interval is narrow.

- `number`: a measured number; `count`: one that counts; `short`: a large one, such as 1.23M.
- `estimate`: a number with its interval; `judged`: only one that has an interval.
"""

import math

from rlplast.report.statistics import Estimate

__all__ = ["count", "estimate", "judged", "number", "short"]

NOTHING = "–"


def number(value: float | None, width: float = math.inf) -> str:
    """Return a number with three significant digits, a dash where there is none.

    Args:
        value: the number.
        width: of its interval, of which two digits are shown at least.

    Examples:
        >>> number(0.123456), number(1234567.0), number(1.25e42), number(2.0), number(None)
        ('0.123', '1,230,000', '1.25e+42', '2.00', '–')
        >>> number(-300_518.2, width=437), number(0.99912, width=0.0004)
        ('-300,520', '0.99912')
    """
    if value is None or value != value:
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # no -0
    rounded = f"{value:.2e}"
    exponent = int(rounded.partition("e")[2])
    if not -4 < exponent < 9:
        return rounded
    if math.isfinite(width) and width > 0:
        place = max(math.floor(math.log10(width)) - 1, exponent - 14)  # a float has 15 digits
        if place < exponent - 2:
            return f"{round(value, -place):,.{max(0, -place)}f}"
    return f"{float(rounded):,.{max(0, 2 - exponent)}f}"


def count(value: float | None) -> str:
    """Return what was counted, or a mean of it: whole where it is.

    Examples:
        >>> count(29750), count(29750.0), count(2.5), count(None)
        ('29,750', '29,750', '2.50', '–')
    """
    if value is None or not math.isfinite(value) or value != round(value):
        return number(value)
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Return a count with three digits and a letter for its size.

    Examples:
        >>> short(123), short(29750), short(1_234_567)
        ('123', '29.8k', '1.23M')
    """
    size, unit = next((p for p in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= p[0]), (1, ""))
    return f"{value / size:.3g}{unit}"


def estimate(found: Estimate | None) -> str:
    """Return a value with its interval.

    Examples:
        >>> estimate(Estimate(1.25, 1.0, 1.5, 3)), estimate(Estimate(2.0, float("nan"), 1.0, 1))
        ('1.25 [1.00, 1.50]', '2.00')
        >>> estimate(Estimate(-300_518.2, -300_700.0, -300_263.0, 5))
        '-300,520 [-300,700, -300,260]'
    """
    if found is None or found.value != found.value:
        return NOTHING
    if found.low != found.low:
        return number(found.value)
    value, low, high = (
        number(v, found.high - found.low) for v in (found.value, found.low, found.high)
    )
    return f"{value} [{low}, {high}]"


def judged(found: Estimate | None) -> Estimate | None:
    """Return an estimate that has an interval; None for one of too few seeds to be judged."""
    return None if found is None or found.low != found.low else found
