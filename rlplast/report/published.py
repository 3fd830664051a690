"""Published curves beside ours: whether an arm's mean lies in the published band.

- `Compared`, `compared`: an arm at one published moment, ours and theirs.
- `bands`, `band_words`: the bands that the charts of curves draw, and what their captions say.
- `parts`: the section of the page, in words and tables.
- `published_csv`: the same as a file.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from rlplast.report.charts import Band, Curve
from rlplast.report.numbers import number
from rlplast.report.page import Part, Row, Table, Text
from rlplast.report.run_data import RunData, measured
from rlplast.report.view import Report
from rlplast.study.published import PublishedCurve

__all__ = ["Compared", "band_words", "bands", "compared", "parts", "published_csv"]

_SCORE, _UNIT = "eval/return_mean", "env_steps"  # what published curves are of
_WINDOW = 20_000  # env_steps up to a moment, whose evaluations are averaged


@dataclass(frozen=True)
class Compared:
    """An arm at one published moment.

    Attributes:
        task: the task.
        arm: the arm.
        source: who published the band.
        env_steps: the moment.
        published_seeds: of how many runs the band is.
        published_mean: its middle.
        published_low: two standard errors below.
        published_high: two standard errors above.
        seeds: our runs that have evaluations in the 20k env_steps up to the moment.
        mean: over them, of the mean of these evaluations.
        verdict: where that lies: inside, above or below the band.
    """

    task: str
    arm: str
    source: str
    env_steps: int
    published_seeds: int
    published_mean: float
    published_low: float
    published_high: float
    seeds: int
    mean: float
    verdict: str


def compared(report: Report) -> list[Compared]:
    """Return every published moment that ours have reached, in the order of tasks and arms."""
    found = []
    for task in report.tasks:
        for theirs in _of(report, task).values():
            found += _compared(theirs, report.of(task, theirs.arm))
    return found


def _of(report: Report, task: str) -> dict[int, PublishedCurve]:
    """Return index of an arm → what was published of it in a task, for arms that have runs."""
    own = {theirs.arm: theirs for theirs in report.gathered.published if theirs.task == task}
    return {
        look.index: own[look.name]
        for look in report.arms
        if look.name in own and report.of(task, look.name)
    }


def _compared(theirs: PublishedCurve, runs: Sequence[RunData]) -> Iterator[Compared]:
    for point in theirs.points:
        means = [mean for run in runs if (mean := _mean_at(run, point.env_steps)) is not None]
        if means:
            mean, (low, high) = sum(means) / len(means), point.band
            yield Compared(
                theirs.task,
                theirs.arm,
                theirs.source,
                point.env_steps,
                point.seeds,
                point.mean,
                low,
                high,
                len(means),
                mean,
                "above" if mean > high else "below" if mean < low else "inside",
            )


def _mean_at(run: RunData, moment: int) -> float | None:
    """Return a run's mean evaluation up to a moment; None if it ended before, or has none."""
    if not run.metrics or run.metrics[-1].get(_UNIT, 0) < moment:
        return None
    near = [row[_SCORE] for row in measured(run, _SCORE) if 0 <= moment - row[_UNIT] < _WINDOW]
    return sum(near) / len(near) if near else None


def bands(report: Report, task: str) -> list[Band]:
    """Return the published bands of a task's chart, as far as ours go."""
    if report.unit(task) != _UNIT.replace("_", " ") or not report.of(task):
        return []
    end = max(run.total for run in report.of(task))
    found = []
    for index, theirs in _of(report, task).items():
        points = [point for point in theirs.points if point.env_steps <= end]
        if points:
            low, high = np.array([point.band for point in points]).T
            xs = np.array([point.env_steps for point in points], dtype=float)
            means = np.array([point.mean for point in points])
            words = f"{theirs.source}, {_seeds(point.seeds for point in points)}"
            found.append(Band(index, words, Curve(xs, means, low, high)))
    return found


def band_words(report: Report, drawn: Sequence[Band]) -> str:
    """Return what a chart's caption says of its bands; "" without any."""
    if not drawn:
        return ""
    whose = "; ".join(f"{report.arms[band.arm].name}: {band.words}" for band in drawn)
    return f" Thin bands with dotted edges: published mean ± 2 standard errors ({whose})."


def _seeds(counts: Iterable[int]) -> str:
    found = sorted(set(counts))
    return " to ".join(map(str, (found[0], found[-1])[: len(found)])) + " seeds"


def parts(report: Report) -> Iterator[Part]:
    """Yield, for each task with published curves, a sentence per arm and a table."""
    rows = compared(report)
    for task in report.tasks:
        own = [row for row in rows if row.task == task]
        for arm in dict.fromkeys(row.arm for row in own):
            yield Text(_in_words([row for row in own if row.arm == arm]))
        if own:
            yield _table(report, task, own)
        for theirs in _of(report, task).values():
            if not any(row.arm == theirs.arm for row in own):
                ends = [_moment(theirs.points[i].env_steps) for i in (0, -1)]
                yield Text(
                    f"{task}, {theirs.arm}: not compared with {theirs.source}, which has points "
                    f"from {ends[0]} to {ends[1]} env_steps. No run of ours has {_SCORE} in the "
                    "20k env_steps up to one of them."
                )


def _in_words(rows: Sequence[Compared]) -> str:
    """Return in a sentence where an arm's means lie, by moment."""
    where = {
        verdict: [_moment(row.env_steps) for row in rows if row.verdict == verdict]
        for verdict in ("inside", "above", "below")
    }
    parts = "; ".join(f"{verdict} at {', '.join(at)}" for verdict, at in where.items() if at)
    first = rows[0]
    theirs = f"{first.source}, {_seeds(row.published_seeds for row in rows)}"
    ours = _seeds(row.seeds for row in rows).replace("1 seeds", "1 seed")
    return (
        f"{first.task}, {first.arm} ({ours}) and the published band ({theirs}): {parts} env_steps."
    )


def _moment(env_steps: int) -> str:
    """Return a count of env_steps as charts write it.

    Examples:
        >>> _moment(60_000), _moment(1_500_000), _moment(123)
        ('60k', '1.5M', '123')
    """
    size, unit = next((pair for pair in ((1e6, "M"), (1e3, "k")) if env_steps >= pair[0]), (1, ""))
    return f"{env_steps / size:g}{unit}"


def _table(report: Report, task: str, rows: Sequence[Compared]) -> Table:
    index = {look.name: look.index for look in report.arms}
    body = [
        Row(
            (
                row.arm,
                row.verdict,
                _moment(row.env_steps),
                number(row.mean),
                str(row.seeds),
                f"{number(row.published_mean)} [{number(row.published_low)}, "
                f"{number(row.published_high)}]",
                str(row.published_seeds),
            ),
            index[row.arm],
        )
        for row in rows
    ]
    head = ("arm", "ours is", "env_steps", "ours", "seeds", "published", "published seeds")
    caption = (
        "Ours: mean over seeds of each seed's mean evaluation in the last 20k env_steps, as the "
        "published one. In brackets: published mean ± 2 standard errors (standard deviation over "
        "the root of the seeds). Ours has an error too, which the verdict leaves out: with few "
        "seeds even an equal agent is often outside."
    )
    return Table(head, tuple(body), caption, words=2, title=task)


def published_csv(rows: Sequence[Compared]) -> str:
    """Return a line per task, arm and published moment."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Compared)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
