"""How far the numbers of a report may be trusted, in words.

- `COVERAGE`, `coverage_words`: how often intervals held the true value in simulated studies.
- `verdict`: what a row says of an arm against the baseline.
"""

from collections.abc import Mapping
from typing import Literal

from rlplast.report.statistics import ALPHA, FEWEST
from rlplast.report.summary import SummaryRow

__all__ = ["COVERAGE", "Kind", "Verdict", "coverage_words", "verdict"]

Kind = Literal["final score", "difference", "all tasks", "improvement"]
Verdict = Literal["better", "worse", "unclear", "too few seeds"]

# Kind of estimate → seeds → how many of 100 intervals held the true value, in the least and the
# most favourable of the simulated distributions. `scripts/coverage.py` prints it.
COVERAGE: Mapping[Kind, Mapping[int, tuple[int, int]]] = {
    "final score": {5: (86, 97), 7: (88, 97), 10: (89, 98), 15: (93, 99), 20: (91, 100)},
    "difference": {5: (92, 96), 7: (92, 97), 10: (91, 97), 15: (92, 97), 20: (91, 98)},
    "all tasks": {5: (73, 100), 7: (78, 100), 10: (86, 100), 15: (90, 100), 20: (90, 100)},
    "improvement": {5: (93, 97), 7: (93, 97), 10: (92, 96), 15: (92, 97), 20: (92, 97)},
}


def coverage_words(count: int, kind: Kind = "final score") -> str:
    """Return in words how often intervals of so many seeds held the true value.

    Between two simulated numbers of seeds the words are of the smaller one.

    Args:
        count: seeds of a task.
        kind: what the interval is of; curves and areas are as final scores.

    Examples:
        >>> coverage_words(4)
        'with fewer than 5 seeds there is no interval'
    """
    if count < FEWEST:
        return f"with fewer than {FEWEST} seeds there is no interval"
    seeds = max(own for own in COVERAGE[kind] if own <= count)
    low, high = COVERAGE[kind][seeds]
    found = str(low) if low == high else f"{low} to {high}"
    return (
        f"with {seeds} seeds such intervals held the true value in {found} of 100 simulated studies"
    )


def verdict(row: SummaryRow, sense: int) -> Verdict:
    """Return what a row says of its arm against the baseline.

    Args:
        row: of an arm other than the baseline.
        sense: 1 where a higher score is better, −1 for losses.

    Returns:
        "better" or "worse" where the corrected p-value is below 0.05; "unclear" where it is not,
        or where there is no test since tasks share no scale; "too few seeds" below 5 on a task.

    Raises:
        ValueError: for a row that is not compared, such as the baseline's.
    """
    if row.improvement is None or row.difference is None:
        raise ValueError(
            f"{row.task}, {row.arm}: there is no comparison in this row, so it has no verdict; "
            "ask for one of rows whose `improvement` is not None"
        )
    if row.improvement.low != row.improvement.low:
        return "too few seeds"
    if row.p_holm is None or row.p_holm >= ALPHA:
        return "unclear"
    return "better" if sense * row.difference.value > 0 else "worse"
