"""How far the numbers of a report may be trusted, in words.

- `COVERAGE`, `coverage_words`: how often intervals held the true value in simulated studies.
- `verdict`: what a row says of an arm against the baseline.
- `rulings`, `verdict_words`: what all rows say, per task, as data and as paragraphs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from rlplast.core.mean_interval import FEWEST
from rlplast.report.numbers import estimate
from rlplast.report.statistics import ALPHA
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow
from rlplast.training.best import higher_is_better

__all__ = [
    "COVERAGE",
    "Claim",
    "Kind",
    "Ruling",
    "Verdict",
    "coverage_words",
    "p_words",
    "rulings",
    "verdict",
    "verdict_words",
]

Kind = Literal["final score", "difference", "all tasks", "improvement"]
Verdict = Literal["better", "worse", "mixed", "withheld", "unclear", "untested", "too few seeds"]

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


def verdict(row: SummaryRow, sense: int, diverged: int = 0) -> Verdict:
    """Return what a row says of its arm against the baseline.

    Args:
        row: of an arm other than the baseline.
        sense: 1 where a higher score is better, −1 for losses.
        diverged: runs of the baseline that diverged.

    Returns:
        "better" or "worse" where the corrected p-value is below 0.05, and "mixed" where it is but
        not even half of the pairs of runs agree; "withheld" where the better side has runs that
        diverged; "unclear" where p is not below 0.05; "untested" where there is no test, since
        seeds do not differ or tasks share no scale; "too few seeds" below 5 on a task.

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
    if row.diverged if gain > 0 else diverged:
        return "withheld"
    return "better" if gain > 0 else "worse"


@dataclass(frozen=True)
class Claim:
    """A sentence on an arm that differs from the baseline, and how sure that is.

    One that says that no arm differs has no arm.
    """

    arm: str | None
    words: str
    certainty: str


@dataclass(frozen=True)
class Ruling:
    """The verdict on the arms on one task, or on the mean over all.

    Attributes:
        about: the task, or the mean; "" for the only task.
        claims: of arms that differ: the best first, then those that are worse.
        rest: sentences on the others, and on what cannot be judged.
    """

    about: str
    claims: tuple[Claim, ...]
    rest: tuple[str, ...]


_CLAIMS: Mapping[Verdict, str] = {
    "better": "{} is better than {} by {}",
    "worse": "{} is worse than {} by {}",
    "mixed": "{} is mixed against {}: its mean differs by {}, but most pairs of runs disagree",
}
_REST: Mapping[Verdict, str] = {
    "withheld": "No verdict against {}: {}. Runs that diverged are in no average, so the side that "
    "has some looks better than it is.",
    "unclear": "No clear difference from {}: {}. This does not show that they are equal.",
    "untested": "Not tested against {}: {}. There is no spread between seeds.",
    "too few seeds": "Too few seeds to judge against {}: {} ({}).",
}
NAMED = 12  # arms that a sentence names


def verdict_words(summary: Summary) -> list[str]:
    """Return in words what `rulings` says, a paragraph each."""
    found = []
    for ruling in rulings(summary):
        claims = [f"{claim.words} ({claim.certainty})." for claim in ruling.claims]
        words = " ".join([*claims, *ruling.rest])
        found.append(f"{ruling.about}: {words}" if ruling.about else words)
    return found


def rulings(summary: Summary) -> list[Ruling]:
    """Return which arms differ from the baseline, and what cannot be judged.

    One on the mean over all tasks if there are rows of that with a test; then one per task, of the
    arms and tasks that are not in it.
    """
    baseline = summary.baseline
    if baseline is None:
        return [Ruling("", (), ("There is no baseline to compare with, so no arm is tested.",))]
    tasks = list(summary.starts)
    pooled = [row for row in summary.aggregates if row.p_value is not None]
    found = []
    if pooled:
        about = f"Mean over these {len(tasks)} tasks"
        found.append(_ruling(about, pooled, summary.aggregates, baseline, 1))
    over_all = {row.arm for row in pooled}
    for task in tasks:
        rows = [row for row in summary.rows if row.task == task]
        about = task if len(tasks) > 1 else ""
        own = _of_task(about, rows, over_all, baseline)
        rest = own.rest + _diverged_words(summary, task)
        if own.claims or rest:
            found.append(replace(own, rest=rest))
    return found


def _of_task(about: str, rows: Sequence[SummaryRow], over_all: Set[str], baseline: str) -> Ruling:
    """Return the verdict on a task's arms, but for those that all tasks together test."""
    own = [row for row in rows if row.arm not in {*over_all, baseline}]
    if any(row.improvement is not None for row in own):
        sense = 1 if higher_is_better(rows[0].score) else -1
        return _ruling(about, own, rows, baseline, sense)
    if not rows:
        return Ruling(about, (), ("No run has a score.",))
    words = f"Nothing is compared, as no run of the baseline {baseline} has a score."
    return Ruling(about, (), (words,) if own else ())


def _diverged_words(summary: Summary, task: str) -> tuple[str, ...]:
    """Return a sentence on the runs of a task that diverged, by arm."""
    scored = Counter(r.arm for r in summary.runs if r.task == task and not math.isnan(r.final))
    words = [
        f"{arm} ({len(seeds)} of {_counted(scored[arm] + len(seeds), 'run')})"
        for (own, arm), seeds in summary.diverged.items()
        if own == task
    ]
    return (f"Diverged, and in no average: {', '.join(words)}.",) if words else ()


def _ruling(
    about: str,
    rows: Sequence[SummaryRow],
    everyone: Sequence[SummaryRow],
    baseline: str,
    sense: int,
) -> Ruling:
    counts = {row.arm: row.seeds for row in everyone}
    most, theirs = max(counts.values()), counts[baseline]
    diverged = next(row.diverged for row in everyone if row.arm == baseline)
    found: dict[Verdict, list[SummaryRow]] = {}
    for row in rows:
        found.setdefault(verdict(row, sense, diverged), []).append(row)
    seeds = sorted({min(row.seeds, theirs) for row in found.get("too few seeds", ())})
    few = f"{' to '.join(map(str, seeds[:: max(1, len(seeds) - 1)]))}; at least {FEWEST}"
    if found.keys() == {"too few seeds"}:
        claim = Claim(None, f"Too few seeds to judge against {baseline}", few)
        return Ruling(about, (claim,), ())
    rest = []
    for own, words in _REST.items():
        others = found.get(own, ())
        names = [row.arm + ("" if own == "too few seeds" else _lost(row, most)) for row in others]
        if own == "withheld":
            names = [f"{row.arm} ({_side(row, sense)}, {_certainty(row, most)})" for row in others]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            rest.append(words.format(baseline, ", ".join(names[:NAMED]) + more, few))
    if theirs < most:
        left = _counted(theirs, "run")
        rest.append(f"{baseline} has {left} with a score, where others have {most}.")
    return Ruling(about, _claims(found, baseline, sense, most), tuple(rest))


def _claims(
    found: Mapping[Verdict, Sequence[SummaryRow]], baseline: str, sense: int, most: int
) -> tuple[Claim, ...]:
    """Return a claim on each arm that differs, or one that none does; the first is complete."""
    kinds: tuple[Verdict, ...] = ("better", "worse", "mixed")
    count, unclear = sum(len(found.get(own, ())) for own in kinds), found.get("unclear", ())
    withheld = found.get("withheld", ())
    tested = count + len(unclear) + len(withheld)
    pooled = any(row.task == ALL_TASKS for own in found.values() for row in own)
    verb = "differs" if tested == 1 else "differ"
    shared = f", Holm, {_counted(most, 'run' if pooled else 'seed')}"
    shared += f", {count} of {_counted(tested, 'arm')} {verb}"
    claims = []
    for own in kinds:
        for row in sorted(found.get(own, ()), key=lambda row: -sense * _gain(row)):
            words = _CLAIMS[own].format(row.arm, baseline, _gain_words(row, own))
            claims.append(Claim(row.arm, words, _certainty(row, most) + ("" if claims else shared)))
    if unclear and not claims and not withheld:
        least = min(row.p_holm for row in unclear if row.p_holm is not None)
        words = f"No arm clearly differs from {baseline}"
        claims.append(Claim(None, words, f"smallest {_p(least)}{shared}"))
    return tuple(claims)


def _side(row: SummaryRow, sense: int) -> str:
    own = "better" if sense * _gain(row) > 0 else "worse"
    return f"{own} by {_gain_words(row, own)}"


def _gain(row: SummaryRow) -> float:
    return 0.0 if row.difference is None else row.difference.value


def _gain_words(row: SummaryRow, own: Verdict) -> str:
    """Return how far an arm is from the baseline; without a sign where words say it."""
    found = row.difference
    if found is not None and found.value < 0 and own != "mixed":
        found = replace(found, value=-found.value, low=-found.high, high=-found.low)
    return estimate(found)


def _certainty(row: SummaryRow, most: int) -> str:
    return ("" if row.p_holm is None else _p(row.p_holm)) + _lost(row, most)


def _p(value: float) -> str:
    return f"p = {p_words(value)}".replace("= <", "<")


def _lost(row: SummaryRow, most: int) -> str:
    """Return how many runs of an arm have a score, where others have more."""
    return f", {row.seeds} runs with a score, where others have {most}" if row.seeds < most else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


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
