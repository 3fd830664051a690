"""What a report says of runs through tasks that follow one another: charts and tables."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from rlplast.report import charts
from rlplast.report.charts import Curve
from rlplast.report.numbers import estimate
from rlplast.report.page import Chart, Part, Row, Table
from rlplast.report.pictures import thinned
from rlplast.report.records import without_empty_columns
from rlplast.report.run_data import RunData
from rlplast.report.sequences import (
    ORACLE,
    SequenceRow,
    TaskScores,
    sequence_rows,
    task_curve,
    tasks_of,
    visits,
)
from rlplast.report.statistics import align, curve_band
from rlplast.report.view import Report, better, interval_words
from rlplast.training.best import higher_is_better

__all__ = ["parts"]

MOST = 12  # tasks that have a panel, and rows of a table, each


# Head of a column → field of `SequenceRow`, and what the caption says.
_COLUMNS = {
    "later visits − first": (
        "revisits",
        "Later visits − first: mean score of a visit of a task minus that of its first visit.",
    ),
    "second half − first task": (
        "late_change",
        "Second half − first task: mean score of the second half of the tasks minus that of the "
        "first; plasticity only where tasks are equally hard.",
    ),
    "plasticity loss": (
        "plasticity_loss",
        f"Plasticity loss: score at the end of a task, {ORACLE} minus arm, without the first task; "
        "not normalised.",
    ),
    "forward transfer": (
        "forward_transfer",
        f"Forward transfer: mean score of the first visit of a task, arm minus {ORACLE}, {{form}}, "
        "without the first task.",
    ),
    "forgetting": (
        "forgetting",
        "Forgetting: score at the end of a task's last visit minus that at the end of the run, "
        "without the task trained last.",
    ),
}
Found = Mapping[str, Mapping[int, TaskScores]]  # arm → seed → its visits


def parts(report: Report) -> Iterator[Part]:
    """Yield charts and tables of each task of a study that is a sequence of tasks."""
    for name in report.tasks:
        names = list(dict.fromkeys(tasks_of(report.of(name)[0].config)))
        if len(names) < 2:
            continue
        found = {a.name: {r.seed: visits(r) for r in report.of(name, a.name)} for a in report.arms}
        apart = _evaluated_apart(found)
        if not apart and not found.get(ORACLE):
            continue  # the curves say it all
        rows = sequence_rows(found, "accuracy" in report.score(name))
        yield _by_phase(report, name, found)
        one_by_one = apart and len(names) <= MOST
        if one_by_one:
            yield _by_task(report, name, names)
        yield _numbers(report, name, rows)
        if one_by_one:
            yield _visits(report, name, rows)


def _evaluated_apart(found: Found) -> bool:
    """Return whether tasks were evaluated while others were trained."""
    finals = (run.finals for runs in found.values() for run in runs.values())
    return any(not math.isnan(value) for own in finals for value in own.values())


def _by_phase(report: Report, name: str, found: Found) -> Chart:
    """Return the chart of the mean score of each task, in the order in which they came."""
    key, slug = report.score(name), report.slugs[name]
    sign = 1.0 if higher_is_better(key) else -1.0
    drawn: dict[int, Curve] = {}
    for look in report.arms:
        means = [sign * own.means for own in found[look.name].values()]
        xs, ys = align([(np.arange(float(len(own))), own) for own in means])
        if len(xs):
            drawn[look.index] = Curve(xs, *curve_band(ys, report.bounds(name, key)))
    caption = (
        f"Mean height of {key} while each task was trained, interquartile mean over seeds; "
        f"band: {interval_words(report.rows(name).values())}. The other sections have the score of "
        "the task that is trained."
    )
    labels = ("phase: number of the task", better(key))
    spec = charts.curves(report.arms, drawn, {}, labels, (), {})
    return Chart(f"sequence-{slug}", f"{name}, task after task", caption, spec)


def _by_task(report: Report, name: str, names: list[str]) -> Chart:
    """Return the chart of the score of each task over the whole run, a panel per task."""
    panels: dict[str, dict[str, dict[int, Curve]]] = {task: {"": {}} for task in names}
    for task in names:
        for look in report.arms:
            xs, ys = align([task_curve(run, task) for run in report.of(name, look.name)])
            if len(xs):
                panels[task][""][look.index] = thinned(Curve(xs, curve_band(ys)[0]), 100)
    caption = (
        f"{report.score(name)} of each task over the run, interquartile mean over seeds. Grey: "
        "where the task is trained. Lines between evaluations are straight."
    )
    shaded, unit = _trained(report.of(name)[0]), report.unit(name)
    spec = charts.panels(report.arms, panels, unit, report.branches(name), shaded)
    return Chart(f"sequence-{report.slugs[name]}-tasks", f"{name}, each task", caption, spec)


def _trained(run: RunData) -> dict[str, list[tuple[float, float]]]:
    """Return task → where it was trained, from and to."""
    ends: dict[int, float] = {}
    for row in run.metrics:
        ends[int(row.get("phase", 0))] = float(row[run.unit])
    found: dict[str, list[tuple[float, float]]] = {}
    start = 0.0
    for number, task in enumerate(tasks_of(run.config)[: len(ends)]):
        end = ends.get(number, start)
        found.setdefault(task, []).append((start, end))
        start = end
    return found


def _numbers(report: Report, name: str, rows: Mapping[str, SequenceRow]) -> Table:
    body = [
        Row(
            (
                look.name,
                str(rows[look.name].seeds),
                *(estimate(getattr(rows[look.name], field)) for field, _ in _COLUMNS.values()),
            ),
            look.index,
        )
        for look in report.arms
        if look.name in rows
    ]
    head = ("arm", "seeds", *_COLUMNS)
    table = without_empty_columns(Table(head, tuple(body), title=name))
    form = "over 1 − oracle" if "accuracy" in report.score(name) else "a plain difference"
    words = [_COLUMNS[own][1].format(form=form) for own in table.head if own in _COLUMNS]
    if not higher_is_better(report.score(name)):
        words.append("Scores count with a minus.")
    intervals = interval_words(report.rows(name).values())
    words.append(f"Means over tasks, then interquartile means over seeds: {intervals}.")
    return replace(table, caption=" ".join(words))


def _visits(report: Report, name: str, rows: Mapping[str, SequenceRow]) -> Table:
    """Return the table of each task's visits."""
    most = max(len(own) for row in rows.values() for own in row.by_visit.values())
    body = []
    for look in report.arms:
        row = rows.get(look.name)
        for task, own in row.by_visit.items() if row else ():
            cells = [estimate(own[j]) if j < len(own) else estimate(None) for j in range(most)]
            lost = estimate(row.lost[task]) if row else ""
            body.append(Row((look.name, task, *cells, lost), look.index))
    later = [f"visit {j} − visit 1" for j in range(2, most + 1)]
    caption = "Visit 1: mean score while the task was trained first. Forgetting: of that task."
    head = ("arm", "task", "visit 1", *later, "forgetting")
    table = Table(head, tuple(body), caption, words=2, title=f"{name}, each visit")
    return without_empty_columns(table)
