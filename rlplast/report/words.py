"""What a report says in words: who is better by how much, how sure, and at what cost.

- `verdict`: what a row says of an arm against the baseline.
- `rulings`: what all rows say, per task, as sentences; `verdict_words`: as paragraphs.
- `card`: what the page begins with.
- `COVERAGE`, `coverage_words`: how often intervals held the true value in simulated studies.
- `better`, `intervals`: a score with its sense; which intervals there are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from rlplast.core.duration import duration
from rlplast.core.mean_interval import FEWEST, LEVEL
from rlplast.report.estimators import ALPHA
from rlplast.report.frame import SMOKE, Results
from rlplast.report.numbers import estimate
from rlplast.report.statistics import ALL_TASKS, Summary
from rlplast.training.best import higher_is_better

__all__ = [
    "COVERAGE",
    "Card",
    "Claim",
    "Verdict",
    "better",
    "card",
    "coverage_words",
    "intervals",
    "p_words",
    "rulings",
    "verdict",
    "verdict_words",
]

Row = Mapping[str, Any]
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
NAMED = 12  # arms that a sentence names
LISTED = 8  # arms, tasks or seeds that the card names
CLAIMED, LINES = 4, 8  # lines of the card, of arms that differ on a task, and of all
HOLM = (
    "p is corrected by Holm's method for the number of verdicts, over arms and tasks: of studies "
    "in which no arm differs, at most about 5% call one better or worse. Intervals are not "
    "corrected."
)


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
    ranges = ["of a {} in {} to {}".format(_NAMES.get(k, k), *COVERAGE[k][seeds]) for k in kinds]
    words = ", ".join(ranges[:-1]) + (" and " if ranges[1:] else "") + ranges[-1]
    return (
        f"How far to trust 95% intervals: of 100 simulated studies with {seeds} seeds, they held "
        f"the true value {words}."
    )


def verdict(row: Row, sense: int, diverged: int = 0) -> Verdict:
    """Return what a row says of its arm against the baseline.

    Args:
        row: of `statistics.Summary`, of an arm that is compared.
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


def verdict_words(results: Results, summary: Summary) -> list[str]:
    """Return in words what `rulings` says, a paragraph for each task."""
    found: dict[str, list[str]] = {}
    for claim in rulings(results, summary):
        found.setdefault(claim.about, []).append(claim.text)
    return [(f"{about}: " if about else "") + " ".join(own) for about, own in found.items()]


def rulings(results: Results, summary: Summary) -> list[Claim]:
    """Return which arms differ from the baseline, and what cannot be judged, in sentences.

    On the mean over all tasks if there are rows of that with a test; then per task, on the arms
    and tasks that are not in it. Of each the arms that differ come first, the best on top.
    """
    baseline, rows = summary.baseline, summary.rows.to_dict("records")
    if baseline is None:
        return [Claim("There is no baseline to compare with, so no arm is tested.")]
    pooled = [row for row in rows if row["task"] == ALL_TASKS]
    tested = [row for row in pooled if row["p_value"] == row["p_value"]]
    found: list[Claim] = []
    if tested:
        about = f"Mean over these {len({row['task'] for row in rows}) - 1} tasks"
        found += _ruling(about, tested, pooled, baseline, 1)
    over_all = {row["arm"] for row in tested}
    for task in results.tasks:
        everyone = [row for row in rows if row["task"] == task]
        own = [row for row in everyone if row["arm"] not in {*over_all, baseline}]
        about = task if len(results.tasks) > 1 else ""
        if any(row["paired"] in (True, False) for row in own):
            sense = 1 if higher_is_better(everyone[0]["score"]) else -1
            found += _ruling(about, own, everyone, baseline, sense)
            found += _notes(results, summary, own, everyone, baseline, sense, about)
        elif not everyone:
            found.append(Claim("No run has a score.", about=about))
        elif own:
            words = f"Nothing is compared, as no run of the baseline {baseline} has a score."
            found.append(Claim(words, about=about))
        found += _diverged(summary, task, everyone, about)
    return found


def _diverged(summary: Summary, task: str, rows: Sequence[Row], about: str) -> Iterator[Claim]:
    """Yield a sentence on the runs of a task that diverged, by arm."""
    scored = {row["arm"]: row["seeds"] for row in rows}
    words = [
        f"{arm} ({len(seeds)} of {_counted(scored.get(arm, 0) + len(seeds), 'run')})"
        for (own, arm), seeds in summary.diverged.items()
        if own == task
    ]
    if words:
        yield Claim(f"Diverged, and in no average: {', '.join(words)}.", about=about)


def _notes(
    results: Results,
    summary: Summary,
    rows: Sequence[Row],
    everyone: Sequence[Row],
    baseline: str,
    sense: int,
    about: str,
) -> Iterator[Claim]:
    """Yield which seeds of better arms fail, and where p and P(improvement) seem to disagree."""
    theirs = results.of(everyone[0]["task"], baseline).final.median()
    diverged = next(row["diverged"] for row in everyone if row["arm"] == baseline)
    failed, apart = [], []
    for row in rows:
        own = verdict(row, sense, diverged)
        finals = results.of(row["task"], row["arm"]).set_index("seed").final.dropna()
        if own == "better":
            # nearer to the baseline's typical end than to the arm's own
            near = finals[sense * (finals - theirs) < sense * (finals.median() - theirs) / 2]
            if 0 < len(near) < len(finals) / 2:
                seeds = ", ".join(map(str, sorted(near.index)))
                failed.append(f"{len(near)} of {len(finals)} seeds of {row['arm']} (seed {seeds})")
        if own == "unclear" and not row["improvement_low"] <= 0.5 <= row["improvement_high"]:
            apart.append(f"{row['arm']} ({estimate(row, 'improvement')}, {_p_of(row)})")
    if failed:
        yield Claim(f"Nearer to where {baseline} ends: {_named(failed)}.", about=about)
    if apart:
        words = "P(improvement) excludes 0.5, but p is not below 0.05: {}. p is corrected for the "
        words += "number of arms, and asks how far apart scores are, not only which is higher."
        yield Claim(words.format(_named(apart)), about=about)


def _named(names: Sequence[str]) -> str:
    """Return names, at most `NAMED` of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _ruling(
    about: str, rows: Sequence[Row], everyone: Sequence[Row], baseline: str, sense: int
) -> Iterator[Claim]:
    counts = {row["arm"]: row["seeds"] for row in everyone}
    most, theirs = max(counts.values()), counts[baseline]
    diverged = next(row["diverged"] for row in everyone if row["arm"] == baseline)
    found: dict[Verdict, list[Row]] = {}
    for row in rows:
        found.setdefault(verdict(row, sense, diverged), []).append(row)
    seeds = sorted({min(row["seeds"], theirs) for row in found.get("too few seeds", ())})
    few = f"{' to '.join(map(str, seeds[:: max(1, len(seeds) - 1)]))}; at least {FEWEST}"
    if found.keys() == {"too few seeds"}:
        yield Claim(f"Too few seeds to judge against {baseline}", few, about=about)
        return
    yield from _claims(about, found, baseline, sense, most)
    for own, words in _REST.items():
        others = found.get(own, ())
        names = [
            row["arm"]
            + ("" if own == "too few seeds" else _lost(row, most))
            + (f" ({_side(row, sense)}, {_p_of(row)})" * (own == "withheld"))
            for row in others
        ]
        if names:
            yield Claim(words.format(baseline, _named(names), few), about=about)
    if theirs < most:
        words = f"{baseline} has {_counted(theirs, 'run')} with a score, where others have {most}."
        yield Claim(words, about=about)


def _claims(
    about: str, found: Mapping[Verdict, Sequence[Row]], baseline: str, sense: int, most: int
) -> Iterator[Claim]:
    """Yield a claim on each arm that differs, or one that none does; the first is complete."""
    unclear, withheld = found.get("unclear", ()), found.get("withheld", ())
    rows = [
        (own, row)
        for own in _CLAIMS
        for row in sorted(found.get(own, ()), key=lambda row: -sense * row["difference"])
    ]
    tested = len(rows) + len(unclear) + len(withheld)
    pooled = any(row["task"] == ALL_TASKS for own in found.values() for row in own)
    verb = "differs" if tested == 1 else "differ"
    shared = f", Holm, {_counted(most, 'run' if pooled else 'seed')}"
    shared += f", {len(rows)} of {_counted(tested, 'arm')} {verb}"
    for first, (own, row) in zip([True] + [False] * len(rows), rows, strict=False):
        words = _CLAIMS[own].format(row["arm"], baseline, _gain(row, own))
        sure = _p_of(row) + _lost(row, most)
        yield Claim(words, sure + (shared if first else ""), row["arm"], about)
    if unclear and not rows and not withheld:
        least = p_words(min(row["p_holm"] for row in unclear))
        words = f"No arm clearly differs from {baseline}"
        yield Claim(words, f"smallest p = {least}{shared}".replace("= <", "<"), about=about)


def _side(row: Row, sense: int) -> str:
    own = "better" if sense * row["difference"] > 0 else "worse"
    return f"{own} by {_gain(row, own)}"


def _gain(row: Row, own: Verdict) -> str:
    """Return how far an arm is from the baseline; without a sign where words say it."""
    ends = [row[f"difference{end}"] for end in ("", "_low", "_high")]
    if ends[0] < 0 and own != "mixed":
        ends = [-ends[0], -ends[2], -ends[1]]
    return estimate(dict(zip(("value", "low", "high"), ends, strict=True)))


def _lost(row: Row, most: int) -> str:
    """Return how many runs of an arm have a score, where others have more."""
    own = row["seeds"]
    return f", {own} runs with a score, where others have {most}" if own < most else ""


def _p_of(row: Row) -> str:
    return f"p = {p_words(row['p_holm'])}".replace("= <", "<")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


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
    """What a reader is to know first.

    Attributes:
        lines: the first is large.
        facts: names with their values.
        bad: what went wrong.
        folded: titles with paragraphs that are folded away.
    """

    lines: Sequence[Claim]
    facts: Mapping[str, str]
    bad: Sequence[str]
    folded: Mapping[str, Sequence[str]]


def card(single: Results, results: Results, summary: Summary) -> Card:
    """Return what a reader is to know first: who is better by how much, how sure, at what cost.

    Args:
        single: runs as they were trained.
        results: with continuations as one run.
        summary: the numbers of `results`.
    """
    found = [] if results.done.empty else rulings(results, summary)
    lines, folded = _lines(found)
    notes = list(dict.fromkeys((*results.notes, *summary.notes)))
    bad = [SMOKE] if SMOKE in notes else []
    failed = sum(": failed" in words for words in results.missing)
    if failed:
        verb = "is" if len(results.missing) == 1 else "are"
        cells = f"{_counted(len(results.missing), 'cell')} {verb} in no number below"
        bad.append(f"{cells}; {failed} of them failed.")
    diverged = Counter({arm: 0 for arm in results.arms})
    for (_, arm), seeds in summary.diverged.items():
        diverged[arm] += len(seeds)
    if total := diverged.total():
        arms = ", ".join(f"{count} of {arm}" for arm, count in diverged.items() if count)
        bad.append(f"{_counted(total, 'run')} diverged, and no average has them: {arms}.")
    paragraphs = [(f"{claim.about}: " if claim.about else "") + claim.text for claim in folded]
    texts = {
        "Other arms": paragraphs,
        "How sure?": list(_sure(summary.rows)),
        "Which cells are missing, and why": results.missing,
        "Notes": [note for note in notes if note != SMOKE],
    }
    if results.done.empty:
        lines = [Claim("No run is done yet.")]
    return Card(
        lines or list(_ends(results, summary)),
        _facts(single),
        bad,
        {title: words for title, words in texts.items() if words},
    )


def _lines(found: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Return the sentences of the card, and those that it folds."""
    lines: list[Claim] = []
    folded: list[Claim] = []
    abouts = dict.fromkeys(claim.about for claim in found)
    for about in abouts:
        own = [claim for claim in found if claim.about == about]
        claims = [claim for claim in own if claim.certainty]
        rest = [claim for claim in own if not claim.certainty]
        few = not claims or (len(abouts) == 1 and len(rest) <= 3)
        lines += claims[:CLAIMED] + (rest if few else [])
        folded += claims[CLAIMED:] + ([] if few else rest)
    return lines[:LINES], [*lines[LINES:], *folded]


def _ends(results: Results, summary: Summary) -> Iterator[Claim]:
    """Yield how the only arm ends."""
    for row in summary.rows.to_dict("records")[:LINES]:
        about = row["task"] if len(results.tasks) > 1 else ""
        sure = f"{row['score']}, {_counted(row['seeds'], 'seed')}"
        yield Claim(f"{row['arm']} ends at {estimate(row, 'final')}", sure, row["arm"], about)


def _sure(rows: pd.DataFrame) -> Iterator[str]:
    """Yield how far numbers may be trusted."""
    if rows.empty:
        return
    if rows.p_holm.notna().any():
        yield HOLM
    single = rows[(rows.task != ALL_TASKS) & rows.final_low.notna()]
    if len(single):
        compared = rows.improvement_low.notna().any()
        kinds: dict[Kind, bool] = {
            "final score": True,
            "difference": compared,
            "improvement": compared,
            "all tasks": (rows[rows.task == ALL_TASKS].p_value.notna()).any(),
        }
        yield coverage_words(
            int(single.seeds.min()), [own for own, there in kinds.items() if there]
        )


def _facts(results: Results) -> dict[str, str]:
    """Return what was compared, by which score, and what it cost."""
    starting = results.left.count("absent")
    words = f"{len(results.left) - starting} running, {starting} to start"
    left = {"Left": words} if results.left else {}
    if results.done.empty:
        return left
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
