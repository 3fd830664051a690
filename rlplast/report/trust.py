"""How far the numbers of a report may be trusted, in words.

- `COVERAGE`, `coverage_words`: how often intervals held the true value in simulated studies.
- `verdict`: what a row says of an arm against the baseline.
- `verdict_words`: what all rows say, in a sentence per task.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Literal

from rlplast.report.statistics import ALPHA, FEWEST
from rlplast.report.summary import Summary, SummaryRow
from rlplast.training.best import higher_is_better

__all__ = ["COVERAGE", "Kind", "Verdict", "coverage_words", "p_words", "verdict", "verdict_words"]

Kind = Literal["final score", "difference", "all tasks", "improvement"]
Verdict = Literal["better", "worse", "mixed", "unclear", "untested", "too few seeds"]

# Kind of estimate → seeds → how many of 100 intervals held the true value, in the least and the
# most favourable of the simulated distributions. `scripts/coverage.py` prints it.
COVERAGE: Mapping[Kind, Mapping[int, tuple[int, int]]] = {
    "final score": {5: (86, 97), 7: (88, 97), 10: (89, 98), 15: (93, 99), 20: (91, 100)},
    "difference": {5: (92, 96), 7: (92, 97), 10: (91, 97), 15: (92, 97), 20: (91, 98)},
    "all tasks": {5: (73, 100), 7: (78, 100), 10: (86, 100), 15: (90, 100), 20: (90, 100)},
    "improvement": {5: (93, 97), 7: (93, 97), 10: (92, 96), 15: (92, 97), 20: (92, 97)},
}


_NAMES: Mapping[str, str] = {"all tasks": "mean over tasks", "improvement": "P(improvement)"}


def coverage_words(count: int, kinds: Sequence[Kind] = ("final score",)) -> str:
    """Return in words how often intervals of so many seeds held the true value.

    Between two simulated numbers of seeds the words are of the smaller one.

    Args:
        count: seeds of a task.
        kinds: of which intervals.

    Examples:
        >>> coverage_words(4)
        'With fewer than 5 seeds there are no intervals.'
    """
    if count < FEWEST:
        return f"With fewer than {FEWEST} seeds there are no intervals."
    seeds = max(own for own in COVERAGE["final score"] if own <= count)
    ranges = []
    for kind in kinds:
        low, high = COVERAGE[kind][seeds]
        ranges.append(f"of a {_NAMES.get(kind, kind)} in {low} to {high}")
    words = ", ".join(ranges[:-1]) + (" and " if ranges[1:] else "") + ranges[-1]
    return (
        f"How far to trust 95% intervals: of 100 simulated studies with {seeds} seeds, they held "
        f"the true value {words}."
    )


def verdict(row: SummaryRow, sense: int) -> Verdict:
    """Return what a row says of its arm against the baseline.

    Args:
        row: of an arm other than the baseline.
        sense: 1 where a higher score is better, −1 for losses.

    Returns:
        "better" or "worse" where the corrected p-value is below 0.05, and "mixed" where it is but
        not even half of the pairs of runs agree; "unclear" where it is not; "untested" where there
        is no test, since seeds do not differ or tasks share no scale; "too few seeds" below 5 on a
        task.

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
    if row.p_holm is None:
        return "untested"
    if row.p_holm >= ALPHA:
        return "unclear"
    gain = sense * row.difference.value
    if gain * (row.improvement.value - 0.5) <= 0:
        return "mixed"
    return "better" if gain > 0 else "worse"


_SENTENCES: Mapping[Verdict, str] = {
    "better": "Better than {}: {}.",
    "worse": "Worse than {}: {}.",
    "mixed": "Mixed against {}: {}. The mean and most pairs of runs disagree: look at the points.",
    "unclear": "No clear difference from {}: {}. This does not show that they are equal.",
    "untested": "Not tested against {}: {}. There is no spread between seeds.",
    "too few seeds": (
        "Too few seeds to judge {1}: the arm and {0} each need {2} with a score on every task."
    ),
}
NAMED = 12  # arms that a sentence names


def verdict_words(summary: Summary) -> list[str]:
    """Return in words which arms differ from the baseline, and what cannot be judged.

    A paragraph on the mean over all tasks if there are rows of that with a test; then one per task,
    of the arms and tasks that are not in it.
    """
    baseline = summary.baseline
    if baseline is None:
        return ["There is no baseline to compare with, so no arm is tested."]
    tasks = list(summary.starts)
    pooled = [row for row in summary.aggregates if row.p_value is not None]
    sentences = []
    if pooled:
        words = _paragraph(pooled, summary.aggregates, baseline, 1)
        sentences.append(f"Mean over these {len(tasks)} tasks: {words}")
    over_all = {row.arm for row in pooled}
    for task in tasks:
        rows = [row for row in summary.rows if row.task == task]
        words = _of_task(rows, over_all, baseline)
        silent = {run.arm for run in summary.runs if run.task == task} - {row.arm for row in rows}
        if silent:
            words.append(f"Without a score: {', '.join(sorted(silent))}.")
        if words:
            sentences.append((f"{task}: " if len(tasks) > 1 else "") + " ".join(words))
    return sentences


def _of_task(rows: Sequence[SummaryRow], over_all: Set[str], baseline: str) -> list[str]:
    """Return sentences on a task's arms, but for those of which all tasks together have a test."""
    own = [row for row in rows if row.arm not in {*over_all, baseline}]
    if any(row.improvement is not None for row in own):
        return [_paragraph(own, rows, baseline, 1 if higher_is_better(rows[0].score) else -1)]
    if not rows:
        return ["No run has a score."]
    return (
        [f"Nothing is compared, as no run of the baseline {baseline} has a score."] if own else []
    )


def _paragraph(
    rows: Sequence[SummaryRow], everyone: Sequence[SummaryRow], baseline: str, sense: int
) -> str:
    most = max(row.seeds for row in everyone)
    found: dict[Verdict, list[str]] = {}
    for row in rows:
        own, notes = verdict(row, sense), []
        if own in ("better", "worse", "mixed") and row.p_holm is not None:
            notes.append(f"p {p_words(row.p_holm)}".replace("p 0", "p = 0"))
        if row.seeds < most and own != "too few seeds":
            notes.append(f"{row.seeds} runs with a score, where others have {most}")
        found.setdefault(own, []).append(row.arm + (f" ({', '.join(notes)})" if notes else ""))
    sentences = []
    for own, words in _SENTENCES.items():
        arms = found.get(own, [])
        if arms:
            rest = f" and {len(arms) - NAMED} more" if len(arms) > NAMED else ""
            sentences.append(words.format(baseline, ", ".join(arms[:NAMED]) + rest, FEWEST))
    if {"better", "worse", "mixed"} & found.keys():
        sentences.append("p is corrected by Holm's method for the number of arms.")
    left = next((row.seeds for row in everyone if row.arm == baseline), most)
    if left < most:
        sentences.append(f"{baseline} has {left} runs with a score, where others have {most}.")
    return " ".join(sentences)


def p_words(p_value: float) -> str:
    """Return a p-value in words.

    Examples:
        >>> p_words(0.0213), p_words(0.0496), p_words(0.00001)
        ('0.021', '0.0496', '< 0.001')
    """
    if p_value < 0.001:
        return "< 0.001"
    digits = 2
    while float(words := f"{p_value:.{digits}g}") == ALPHA != p_value:  # on its side of it
        digits += 1
    return words
