"""How far the numbers of a report may be trusted, in words.

- `COVERAGE`, `coverage_words`: how often intervals held the true value in simulated studies.
- `verdict`: what a row says of an arm against the baseline.
- `verdict_words`: what all rows say, in a sentence per task.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from rlplast.report.run_data import higher_is_better
from rlplast.report.statistics import ALPHA, FEWEST
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow

__all__ = ["COVERAGE", "Kind", "Verdict", "coverage_words", "p_words", "verdict", "verdict_words"]

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


_SAID: Mapping[Verdict, str] = {
    "better": "Better than {}: {}.",
    "worse": "Worse than {}: {}.",
    "unclear": "Not to be told from {}: {}. That does not mean that they are equal.",
    "too few seeds": (
        "Nothing is said with certainty of {1}: that takes {2} seeds with a score on each task, "
        "for the arm and for {0}."
    ),
}
NAMED = 12  # arms that a sentence names


def verdict_words(summary: Summary) -> list[str]:
    """Return in words which arms differ from the baseline, and what cannot be said.

    A paragraph over all tasks if there are rows of them that have a test, else one per task.
    """
    if summary.baseline is None:
        return ["There is no baseline, so no arm is tested against another."]
    groups: dict[str, list[SummaryRow]] = {}
    pooled = any(row.p_value is not None for row in summary.aggregates)
    for row in summary.aggregates if pooled else summary.rows:
        if row.improvement is not None and row.difference is not None:
            groups.setdefault(row.task, []).append(row)
    return [
        ("" if len(groups) == 1 and not pooled else f"{task}: ")
        + _paragraph(rows, summary.baseline)
        for task, rows in groups.items()
    ]


def _paragraph(rows: Sequence[SummaryRow], baseline: str) -> str:
    found: dict[Verdict, list[str]] = {}
    for row in rows:
        sense = 1 if row.task == ALL_TASKS or higher_is_better(row.score) else -1
        own = verdict(row, sense)
        certain = ""
        if own in ("better", "worse") and row.p_holm is not None:
            certain = f" (p {p_words(row.p_holm)})".replace("(p 0", "(p = 0")
        found.setdefault(own, []).append(row.arm + certain)
    said = []
    for own, words in _SAID.items():
        arms = found.get(own, [])
        if arms:
            rest = f" and {len(arms) - NAMED} more" if len(arms) > NAMED else ""
            said.append(words.format(baseline, ", ".join(arms[:NAMED]) + rest, FEWEST))
    if {"better", "worse"} & found.keys():
        said.append("p is corrected by Holm's method for the number of arms.")
    return " ".join(said)


def p_words(p_value: float) -> str:
    """Return a p-value in words.

    Examples:
        >>> p_words(0.0213), p_words(0.00001)
        ('0.021', '< 0.001')
    """
    return "< 0.001" if p_value < 0.001 else f"{p_value:.2g}"
