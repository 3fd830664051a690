"""Numbers as a report writes them: three significant digits.

- `number`: a measured number; `count`: one that counts; `short`: a large one, such as 1.23M.
- `estimate`: a number with its interval; `judged`: only one that has an interval.
"""

import math

from rlplast.report.statistics import Estimate

__all__ = ["count", "estimate", "judged", "number", "short"]

NOTHING = "–"


def number(value: float | None) -> str:
    """Return a number with three significant digits, a dash where there is none.

    Examples:
        >>> number(0.123456), number(1234567.0), number(1.25e42), number(2.0), number(None)
        ('0.123', '1,230,000', '1.25e+42', '2.00', '–')
    """
    if value is None or value != value:
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # no -0
    rounded = f"{value:.2e}"
    exponent = int(rounded.partition("e")[2])
    if not -4 < exponent < 9:
        return rounded
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
    """
    if found is None or found.value != found.value:
        return NOTHING
    if found.low != found.low:
        return number(found.value)
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def judged(found: Estimate | None) -> Estimate | None:
    """Return an estimate that has an interval; None for one of too few seeds to be judged."""
    return None if found is None or found.low != found.low else found
