"""The card that a report begins with: who is better by how much, how sure, and at what cost.

- `card`: of a report with finished runs.
- `left_words`: what is left to run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rlplast.core.duration import duration
from rlplast.report.gather import SMOKE
from rlplast.report.numbers import estimate, judged, short
from rlplast.report.page import Card, Line
from rlplast.report.summary import ALL_TASKS, SummaryRow
from rlplast.report.trust import Kind, coverage_words, rulings
from rlplast.report.view import Report, better

__all__ = ["card", "left_words"]

NAMED = 8  # arms, tasks or seeds that the card names
CLAIMED, LINES = 4, 8  # lines of the card, of arms that differ on a task, and of all
HOLM = (
    "p is corrected by Holm's method for the number of verdicts, over arms and tasks: of studies "
    "in which no arm differs, at most about 5% call one better or worse. Intervals are not "
    "corrected."
)


def card(report: Report) -> Card:
    """Return what a reader is to know first: who is better by how much, how sure, at what cost."""
    lines, others = _lines(report)
    missing = report.gathered.missing
    notes = list(dict.fromkeys((*report.gathered.notes, *report.summary.notes)))
    folded = {
        "Other arms": others,
        "How sure?": list(_sure(report)),
        "Which cells are missing, and why": list(missing),
        "Notes": [note for note in notes if note != SMOKE],
    }
    bad = [SMOKE] if SMOKE in notes else []
    failed = sum(": failed" in words for words in missing)
    if failed:
        verb = "is" if len(missing) == 1 else "are"
        cells = f"{_counted(len(missing), 'cell')} {verb} in no number below"
        bad.append(f"{cells}; {failed} of them failed.")
    diverged = Counter({arm: 0 for arm in report.gathered.arms})
    for (_, arm), seeds in report.summary.diverged.items():
        diverged[arm] += len(seeds)
    if diverged.total():
        arms = ", ".join(f"{count} of {arm}" for arm, count in diverged.items() if count)
        bad.append(
            f"{_counted(diverged.total(), 'run')} diverged, and no average has them: {arms}."
        )
    return Card(
        tuple(lines),
        tuple(_facts(report)),
        tuple(bad),
        tuple((title, tuple(words)) for title, words in folded.items() if words),
    )


def _lines(report: Report) -> tuple[list[Line], list[str]]:
    """Return the rulings on arms: the lines of the card, and paragraphs that it folds."""
    index = {look.name: look.index for look in report.arms}
    found = rulings(report.summary)
    lines: list[Line] = []
    folded: list[Line] = []
    for ruling in found:
        claims = [
            Line(claim.words, claim.certainty, index.get(str(claim.arm)), ruling.about)
            for claim in ruling.claims
        ]
        rest = [Line(words, about=ruling.about) for words in ruling.rest]
        few = not claims or (len(found) == 1 and len(rest) <= 2)
        lines += claims[:CLAIMED] + (rest if few else [])
        folded += claims[CLAIMED:] + ([] if few else rest)
    shown = lines[:LINES] or list(_ends(report))
    return shown, [_paragraph(line) for line in (*lines[LINES:], *folded)]


def _paragraph(line: Line) -> str:
    sure = f" ({line.certainty})." if line.certainty else ""
    return (f"{line.about}: " if line.about else "") + line.words + sure


def _ends(report: Report) -> Iterator[Line]:
    """Yield how the only arm ends."""
    several = len(report.tasks) > 1
    for row in report.summary.rows[:LINES]:
        words = f"{row.arm} ends at {estimate(row.final)}"
        sure = f"{row.score}, {_counted(row.seeds, 'seed')}"
        yield Line(words, sure, 0, row.task if several else "")


def _sure(report: Report) -> Iterator[str]:
    """Yield how far numbers may be trusted."""
    rows, pooled = report.summary.rows, report.summary.aggregates
    if any(row.p_holm is not None for row in (*rows, *pooled)):
        yield HOLM
    counts = [row.final.count for row in rows if judged(row.final)]
    if counts:
        yield coverage_words(min(counts), _kinds([*rows, *pooled]))


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what was compared, by which score, and what it cost."""
    gathered, summary = report.gathered, report.summary
    seeds = sorted({run.seed for run in gathered.runs})
    for title, names in (("Arms", gathered.arms), ("Tasks", gathered.tasks), ("Seeds", seeds)):
        yield title, _listed(names)
    keys = dict.fromkeys(map(report.score, report.tasks))
    yield "Score", ", ".join(map(better, keys))
    done, missing = len(gathered.single), len(gathered.missing)
    runs = f"{done} {'run is' if done == 1 else 'runs are'} done"
    yield "Runs", runs + (f", {missing} {'is' if missing == 1 else 'are'} not" if missing else "")
    if gathered.left:
        yield "Left", left_words(report)
    seconds, updates = summary.cost
    yield (
        "Cost",
        f"{duration(seconds)} of wall time, {short(updates)} updates, in all cells",
    )


def left_words(report: Report) -> str:
    """Return in words what is left to run, and about how long it takes."""
    left = report.gathered.left
    running = sum(started for started, _ in left)
    words = f"{running} running, {len(left) - running} to start"
    took = [run.own_seconds for run in report.summary.runs]
    if not took or not running:
        return words
    seconds = sum(share for _, share in left) * sum(took) / len(took) / running
    return f"{words}; about {duration(seconds)} with {_counted(running, 'run')} at once"


def _kinds(rows: Sequence[SummaryRow]) -> list[Kind]:
    """Return of what there are intervals."""
    compared = [row.improvement for row in rows if row.improvement is not None]
    found: dict[Kind, bool] = {
        "final score": True,
        "difference": any(own.low == own.low for own in compared),
        "improvement": any(own.low == own.low for own in compared),
        "all tasks": any(row.task == ALL_TASKS and row.p_value is not None for row in rows),
    }
    return [kind for kind, there in found.items() if there]


def _listed(names: Sequence[object]) -> str:
    """Return how many there are, and which if they are few."""
    few = len(names) <= NAMED
    return f"{len(names)}: {', '.join(map(str, names))}" if few else str(len(names))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
