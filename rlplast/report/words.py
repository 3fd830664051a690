"""What a report says in words: who is better by how much, how sure, and at what cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from rlplast.core.duration import counted, duration
from rlplast.core.mean_interval import FEWEST, LEVEL
from rlplast.report.estimators import ALPHA
from rlplast.report.frame import SMOKE, Results
from rlplast.report.numbers import estimate
from rlplast.report.statistics import ALL_TASKS, Summary
from rlplast.training.best import higher_is_better

__all__ = [
    "Card",
    "Claim",
    "Verdict",
    "better",
    "card",
    "intervals",
    "p_words",
    "rulings",
    "verdict",
    "verdict_words",
]

Row = Mapping[str, Any]
Verdict = Literal["better", "worse", "mixed", "withheld", "unclear", "untested", "too few seeds"]

NAMED = 12  # arms that a sentence names
LISTED = 8  # arms, tasks or seeds that the card names
LINES = 8  # sentences that the card does not fold
HOLM = (
    "p is corrected by Holm's method for the number of verdicts, over arms and tasks: of studies "
    "in which no arm differs, at most about 5% call one better or worse. Intervals are not "
    "corrected."
)
COVERAGE = (
    "Intervals are made to hold the true value in 95 of 100 studies. With 5 seeds, of which one in "
    "five fails, it may be 73: docs/explanation/statistics.md says what was measured."
)


def verdict(row: Row, sense: int, diverged: int = 0) -> Verdict:
    """Return what a row of `statistics.Summary` says of its arm against the baseline.

    Args:
        row: of an arm that is compared.
        sense: 1 where a higher score is better, −1 for losses.
        diverged: runs of the baseline that diverged.

    Returns:
        "better" or "worse" where the corrected p-value is below 0.05, and "mixed" where it is but
        not even half of the pairs of runs agree; "withheld" where the better side has runs that
        diverged; "unclear" where p is not below 0.05; "untested" where there is no test, since
        seeds do not differ or tasks share no scale; "too few seeds" below 5 on a task.
    """
    if row["improvement_low"] != row["improvement_low"]:
        return "too few seeds"
    if row["p_holm"] != row["p_holm"]:
        return "untested"
    if row["p_holm"] >= ALPHA:
        return "unclear"
    gain = sense * row["difference"]
    if gain * (row["improvement"] - 0.5) <= 0:
        return "mixed"
    if row["diverged"] if gain > 0 else diverged:
        return "withheld"
    return "better" if gain > 0 else "worse"


@dataclass(frozen=True)
class Claim:
    """A sentence of the verdict.

    Attributes:
        words: the sentence, without a full stop if `certainty` follows.
        certainty: how sure that is; "" if the words say all.
        arm: of an arm that differs; None for other sentences.
        about: the task, or the mean over all; "" for the only task.
    """

    words: str
    certainty: str = ""
    arm: str | None = None
    about: str = ""

    @property
    def text(self) -> str:
        """The sentence in full."""
        return self.words + (f" ({self.certainty})." if self.certainty else "")


# What is said of each arm that differs, and of all that have another verdict.
_CLAIMS: Mapping[Verdict, str] = {
    "better": "{arm} is better than {baseline} by {gain}",
    "worse": "{arm} is worse than {baseline} by {gain}",
    "mixed": "{arm} is mixed against {baseline}: its mean differs by {gain}, but most pairs of "
    "runs disagree",
}
_REST: Mapping[Verdict, str] = {
    "withheld": "No verdict against {baseline}: {arms}. Runs that diverged are in no average, so "
    "the side that has some looks better than it is.",
    "unclear": "No clear difference from {baseline}: {arms}. This does not show that they are "
    "equal.",
    "untested": "Not tested against {baseline}: {arms}. There is no spread between seeds.",
    "too few seeds": "Too few seeds to judge against {baseline}: {arms} (at least 5 are needed).",
}


def verdict_words(results: Results, summary: Summary) -> list[str]:
    """Return in words what `rulings` says, a paragraph for each task, and which runs diverged."""
    found: dict[str, list[str]] = {}
    for claim in rulings(results, summary):
        found.setdefault(claim.about, []).append(claim.text)
    paragraphs = [(f"{about}: " if about else "") + " ".join(own) for about, own in found.items()]
    return [*paragraphs, *_diverged(summary)]


def rulings(results: Results, summary: Summary) -> list[Claim]:
    """Return which arms differ from the baseline, and what cannot be judged, in sentences.

    On the mean over all tasks if that has a test; then per task, on the arms and tasks that are not
    in it. Of each the arms that differ come first, the best on top.
    """
    baseline, rows = summary.baseline, summary.rows
    if baseline is None:
        named = results.baseline
        why = f"No run of {named} has a score" if named else "There is no baseline to compare with"
        return [Claim(f"{why}, so no arm is tested.")]
    pooled = rows[rows.task == ALL_TASKS]
    tested = pooled[pooled.p_value.notna()]
    found: list[Claim] = []
    if len(tested):
        about = f"Mean over these {rows.task.nunique() - 1} tasks"
        found += _ruling(about, tested, pooled, baseline, 1)
    for task in results.tasks:
        everyone = summary.of(task)
        own = everyone[~everyone.arm.isin([*tested.arm, baseline])]
        about = task if len(results.tasks) > 1 else ""
        if everyone.empty:
            found.append(Claim("No run has a score.", about=about))
        elif own.paired.notna().any():
            sense = 1 if higher_is_better(everyone.score.iloc[0]) else -1
            found += _ruling(about, own, everyone, baseline, sense)
        elif len(own):
            words = f"Nothing is compared, as no run of the baseline {baseline} has a score."
            found.append(Claim(words, about=about))
    return found


def _ruling(
    about: str, rows: pd.DataFrame, everyone: pd.DataFrame, baseline: str, sense: int
) -> Iterator[Claim]:
    """Yield what some rows say: those that differ, the best first, then the others."""
    (theirs,) = everyone.diverged[everyone.arm == baseline]
    rows = rows.assign(gain=sense * rows.difference).sort_values(
        "gain", ascending=False, kind="stable"
    )
    found: dict[Verdict, list[Row]] = {}
    for row in rows.to_dict("records"):
        found.setdefault(verdict(row, sense, theirs), []).append(row)
    differ = [(own, row) for own in _CLAIMS for row in found.get(own, ())]
    tested = len(differ) + len(found.get("unclear", ())) + len(found.get("withheld", ()))
    what = "run" if rows.task.iloc[0] == ALL_TASKS else "seed"
    fewest, most = everyone.seeds.min(), everyone.seeds.max()
    shared = (
        f", Holm, {f'{fewest} to ' * bool(fewest < most)}{counted(most, what)}, {len(differ)} of "
        f"{counted(tested, 'arm')} {'differs' if tested == 1 else 'differ'}"
    )
    for own, row in differ:  # the first one is complete
        words = _CLAIMS[own].format(arm=row["arm"], baseline=baseline, gain=_gain(row, own))
        yield Claim(words, _p_of(row) + shared, row["arm"], about)
        shared = ""
    for own, words in _REST.items():
        names = [_with_numbers(row, own) for row in found.get(own, ())]
        if names:
            yield Claim(words.format(baseline=baseline, arms=_named(names)), about=about)


def _named(names: Iterable[str]) -> str:
    """Return names, at most `NAMED` of them."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _with_numbers(row: Row, own: Verdict) -> str:
    """Return an arm with what was measured of it, where it was tested."""
    if own == "unclear":
        return f"{row['arm']} ({_p_of(row)})"
    if own == "withheld":
        side: Verdict = "better" if row["gain"] > 0 else "worse"
        return f"{row['arm']} ({side} by {_gain(row, side)}, {_p_of(row)})"
    return row["arm"]


def _gain(row: Row, own: Verdict) -> str:
    """Return how far an arm is from the baseline; without a sign where words say it."""
    ends = [row[f"difference{end}"] for end in ("", "_low", "_high")]
    if ends[0] < 0 and own != "mixed":
        ends = [-ends[0], -ends[2], -ends[1]]
    return estimate(dict(zip(("value", "low", "high"), ends, strict=True)))


def _p_of(row: Row) -> str:
    return f"p = {p_words(row['p_holm'])}".replace("= <", "<")


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


@dataclass(frozen=True)
class Card:
    """What a reader is to know first; the first line is large, `folded` has title → paragraphs."""

    lines: Sequence[Claim]
    facts: Mapping[str, str]
    bad: Sequence[str]
    folded: Mapping[str, Sequence[str]]


def card(single: Results, results: Results, summary: Summary) -> Card:
    """Return what a reader is to know first; `single` has continuations one by one."""
    found = rulings(results, summary) or list(_ends(results, summary))
    notes = list(dict.fromkeys((*results.notes, *summary.notes)))
    bad = [SMOKE] if SMOKE in notes else []
    failed = sum(": failed" in words for words in results.missing)
    if failed:
        cells = counted(len(results.missing), "cell")
        bad.append(f"{cells} not done, and in no number below; {failed} of them failed.")
    bad += _diverged(summary)
    texts = {
        "More arms and tasks": [
            (f"{claim.about}: " if claim.about else "") + claim.text for claim in found[LINES:]
        ],
        "How sure?": [HOLM] * bool(summary.rows.p_holm.notna().any())
        + [COVERAGE] * bool(summary.rows.final_low.notna().any()),
        "Which cells are missing, and why": results.missing,
        "Notes": [note for note in notes if note != SMOKE],
    }
    folded = {title: words for title, words in texts.items() if words}
    return Card(found[:LINES], _facts(single), bad, folded)


def _diverged(summary: Summary) -> Iterator[str]:
    """Yield how many runs diverged, if any."""
    diverged = {f"{task}, {arm}": len(seeds) for (task, arm), seeds in summary.diverged.items()}
    if diverged:
        arms = ", ".join(f"{count} of {name}" for name, count in diverged.items())
        runs = counted(sum(diverged.values()), "run")
        yield f"{runs} diverged, and no average has them: {arms}."


def _ends(results: Results, summary: Summary) -> Iterator[Claim]:
    """Yield how the only arm ends."""
    for row in summary.rows.to_dict("records"):
        about = row["task"] if len(results.tasks) > 1 else ""
        sure = f"{row['score']}, {counted(row['seeds'], 'seed')}"
        yield Claim(f"{row['arm']} ends at {estimate(row, 'final')}", sure, row["arm"], about)


def _facts(results: Results) -> dict[str, str]:
    """Return what was compared, by which score, and what it cost."""
    starting = results.left.count("absent")
    words = f"{len(results.left) - starting} running, {starting} to start"
    left = {"Left": words} if results.left else {}
    done, missing = len(results.done), len(results.missing)
    named = {"Arms": results.arms, "Tasks": results.tasks, "Seeds": sorted(set(results.done.seed))}
    facts = {
        title: f"{len(own)}: {', '.join(map(str, own))}" if len(own) <= LISTED else str(len(own))
        for title, own in named.items()
    }
    facts["Score"] = ", ".join(map(better, dict.fromkeys(results.done.score)))
    facts["Runs"] = f"{done} {'run is' if done == 1 else 'runs are'} done" + (
        f", {missing} {'is' if missing == 1 else 'are'} not" if missing else ""
    )
    facts |= left
    cells = results.runs[results.runs.status == "done"]  # prefixes too, each once
    updates = int((cells.updates - cells.branch_updates.fillna(0)).sum())
    seconds = duration(cells.own_seconds.sum())
    facts["Cost"] = f"{seconds} of wall time, {updates:,} updates, in all cells"
    return facts


def better(key: str) -> str:
    """Return a score's name with its sense, for an axis."""
    return f"{key} ({'higher' if higher_is_better(key) else 'lower'} is better)"


def intervals(rows: pd.DataFrame, name: str = "final") -> str:
    """Return in words which intervals the estimates of a table have."""
    if rows.empty:
        return "none yet"
    few = rows[f"{name}_low" if name != "value" else "low"].isna()
    if few.all():
        return f"none, as arms have fewer than {FEWEST} seeds"
    return f"{LEVEL:.0%} intervals" + (f" (none with fewer than {FEWEST} seeds)" * bool(few.any()))
