"""What a report says in numbers: a row per task and arm, and rows over all tasks.

- `SummaryRow`, `Summary`, `summarise`: the numbers of all arms, with intervals.
- `csv_text`: the same as a file.

Estimates over seeds are interquartile means with a 95% interval (`rlplast.report.statistics`), and
tests are of the difference to the baseline (`rlplast.report.comparison`). A run without a score is
in no average; the notes name it.
"""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.report.comparison import Comparison, compare, holm
from rlplast.report.drops import Drop
from rlplast.report.gather import Gathered
from rlplast.report.numbers import judged
from rlplast.report.run_data import (
    Run,
    RunData,
    hook_time,
    measure,
    prefix_seconds,
    updates_done,
)
from rlplast.report.scores import RAW, Scale, bounds_of, reference_id, scale_of
from rlplast.report.statistics import (
    UNBOUNDED,
    Estimate,
    probability_of_improvement,
    stratified_interval,
    within,
)
from rlplast.training.best import higher_is_better

__all__ = ["ALL_TASKS", "Summary", "SummaryRow", "csv_text", "summarise"]

ALL_TASKS = "all tasks"
_NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class SummaryRow:
    """An arm on a task, or on all tasks.

    Attributes:
        task: the task, or `ALL_TASKS`.
        arm: the arm.
        seeds: finished runs with a score.
        diverged: runs that diverged, which are in no number of the row.
        score: name of the score in metrics.jsonl; "" over tasks that have several.
        unit: what the x of the curves counts; "" over tasks that have several.
        scale: "raw", or the name of the scale `final` to `drop` are on (rows over all tasks).
        final: final score.
        change: final score minus that in the first tenth of a run; None but for runs on tasks.
        normalised: final score on the scale of the task; None if there is none.
        normalised_scale: name of that scale; "" if there is none.
        auc: mean height of the curve.
        auc_after: mean height from where the first arm of the task leaves the others.
        improvement: how likely a run's final score is better than one of the baseline (higher,
            or lower for losses); not-a-number with fewer than 5 seeds on a task; None for the
            baseline itself.
        difference: final score minus that of the baseline, in the score's own sense: negative
            is better for losses; None for the baseline itself.
        paired: whether the difference is between runs of equal seeds, else that of the means of
            all runs; None for the baseline.
        p_value: two-sided, of no difference; None for the baseline, with fewer than 5 seeds on
            a task, and over tasks that share no scale.
        p_holm: the same, corrected for the number of verdicts, over arms and tasks.
        drop: how much worse the first score after the intervention is than the last before.
        lost_area: what was lost from the intervention until the score was back, or until the end:
            score times units of x; None as `drop`, and over tasks that have several units.
        recovery: median x from the intervention until the score is back; not-a-number if half
            of the runs or more never recover, or without an intervention.
        recovered: runs whose score came back.
        intervened: runs with a score on either side of an intervention.
        seconds: mean wall-clock seconds of a run, its prefix included.
        own_seconds: mean wall-clock seconds of a run after its prefix.
        updates: mean number of optimizer updates.
    """

    task: str
    arm: str
    seeds: int
    diverged: int
    score: str
    unit: str
    scale: str
    final: Estimate
    change: Estimate | None
    normalised: Estimate | None
    normalised_scale: str
    auc: Estimate
    auc_after: Estimate
    improvement: Estimate | None
    difference: Estimate | None
    paired: bool | None
    p_value: float | None
    p_holm: float | None
    drop: Estimate | None
    lost_area: Estimate | None
    recovery: float
    recovered: int
    intervened: int
    seconds: float
    own_seconds: float
    updates: float


@dataclass(frozen=True)
class Summary:
    """The numbers of a report.

    Attributes:
        baseline: what arms are compared with, if there is one.
        runs: numbers of each run, in the order of `Gathered.runs`.
        rows: per task, then arm; an arm without a finished run on a task has none.
        aggregates: per arm over all tasks; empty for one task, or if tasks share no scale.
        diverged: per task and arm, seeds of runs that diverged: those that ended by it, and those
            whose last score is no finite number.
        starts: per task, x of the earliest point where an arm leaves the others; None without.
        prefix_seconds: per task, wall-clock seconds of its prefixes, each counted once.
        cost: wall-clock seconds and updates of all runs, with prefixes, each counted once.
        notes: what was left out, and why.
    """

    baseline: str | None
    runs: tuple[Run, ...]
    rows: tuple[SummaryRow, ...]
    aggregates: tuple[SummaryRow, ...]
    diverged: Mapping[tuple[str, str], tuple[int, ...]]
    starts: Mapping[str, float | None]
    prefix_seconds: Mapping[str, float]
    cost: tuple[float, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Task:
    """A task with the runs on it that have a score, by arm; `bounds` are those of a score."""

    name: str
    score: str
    unit: str
    scale: Scale
    bounds: tuple[float, float]
    arms: Mapping[str, Sequence[Run]]
    diverged: Mapping[str, int]

    @property
    def sign(self) -> int:
        """1 where a higher score is better, else −1."""
        return 1 if higher_is_better(self.score) else -1


def summarise(gathered: Gathered) -> Summary:
    """Return the numbers of all arms."""
    starts = {task: _start(gathered.runs, task) for task in gathered.tasks}
    runs = tuple(measure(run, starts[run.task]) for run in gathered.runs)
    notes = [
        f"{run.task}, {run.arm}, seed {run.seed} has no score at its end: it is in no average"
        for run in runs
        if math.isnan(run.final)
    ]
    baseline = gathered.baseline
    if baseline is not None and not any(run.arm == baseline for run in runs):
        notes.append(f"no run of the baseline {baseline} has a score: nothing is compared with it")
        baseline = None
    diverged = _diverged(gathered, runs)
    tasks = [_task(gathered, runs, diverged, name) for name in gathered.tasks]
    rows = [
        _row([task], [RAW], arm, baseline)
        for task in tasks
        for arm in gathered.arms
        if arm in task.arms
    ]
    aggregates: list[SummaryRow] = []
    if len(tasks) > 1:
        aggregates = _aggregates(tasks, gathered.arms, baseline, notes)
    rows, aggregates = _corrected(rows, aggregates)
    prefixes = prefix_seconds(gathered.single, gathered.prefixes)
    seconds = sum(measure(run, None).own_seconds for run in gathered.single)
    seconds += sum(prefixes.values())
    return Summary(
        baseline,
        runs,
        tuple(rows),
        tuple(aggregates),
        diverged,
        starts,
        prefixes,
        (seconds, updates_done(gathered.single, gathered.prefixes)),
        tuple(notes),
    )


def _start(runs: Sequence[RunData], task: str) -> float | None:
    """Return the earliest x at which a run of the task leaves the others."""
    own = [run for run in runs if run.task == task]
    moments = [hook_time(run) for run in own]
    moments += [float(run.branch[run.unit]) for run in own if run.branch is not None]
    return min((moment for moment in moments if moment is not None), default=None)


def _diverged(gathered: Gathered, runs: Sequence[Run]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return per task and arm the seeds of runs that diverged."""
    silent = ((run.task, run.arm, run.seed) for run in runs if math.isnan(run.final))
    found: dict[tuple[str, str], set[int]] = {}
    for task, arm, seed in (*gathered.diverged, *silent):
        found.setdefault((task, arm), set()).add(seed)
    return {key: tuple(sorted(seeds)) for key, seeds in found.items()}


def _task(
    gathered: Gathered,
    runs: Sequence[Run],
    diverged: Mapping[tuple[str, str], Sequence[int]],
    name: str,
) -> _Task:
    data = [run for run in gathered.runs if run.task == name]
    if not data:
        return _Task(name, "", "", RAW, UNBOUNDED, {}, {})
    key, unit = data[0].score, data[0].unit
    tasks = {reference_id(run.config) for run in data}
    scales = {scale_of(task, key) for task in tasks}
    bounds = {bounds_of(task, key) for task in tasks}
    arms: dict[str, list[Run]] = {}
    for run in runs:
        if run.task == name and not math.isnan(run.final):
            arms.setdefault(run.arm, []).append(run)
    return _Task(
        name,
        key,
        unit,
        scales.pop() if len(scales) == 1 else RAW,
        bounds.pop() if len(bounds) == 1 else UNBOUNDED,
        arms,
        {arm: len(seeds) for (task, arm), seeds in diverged.items() if task == name},
    )


def _aggregates(
    tasks: Sequence[_Task],
    arms: Sequence[str],
    baseline: str | None,
    notes: list[str],
) -> list[SummaryRow]:
    """Return rows over all tasks, of the arms that have runs on each; say what is left out."""
    labels = {task.name: task.scale.label for task in tasks}
    scales = [task.scale for task in tasks]
    if len(set(labels.values())) > 1 or RAW.label in labels.values():
        words = ", ".join(f"{name}: {label}" for name, label in labels.items())
        notes.append(
            f"scores are not averaged over tasks, since these share no scale ({words}); all "
            "tasks together only show how likely an arm beats the baseline on them"
        )
        scales = []
    whole = [arm for arm in arms if all(arm in task.arms for task in tasks)]
    if len(whole) < len(arms):
        others = ", ".join(arm for arm in arms if arm not in whole)
        notes.append(f"not in the rows over all tasks, for want of a score on some: {others}")
    if not scales:
        whole = [arm for arm in whole if baseline not in (None, arm)]
    return [_row(tasks, scales, arm, baseline) for arm in whole]


def _corrected(
    rows: Sequence[SummaryRow], aggregates: Sequence[SummaryRow]
) -> tuple[list[SummaryRow], list[SummaryRow]]:
    """Return the rows of tasks and those over all tasks with their p-values corrected.

    All rows that get a verdict are one family: those over all tasks, and of arms that have none
    the rows of the tasks. The other rows of tasks, which detail a verdict, are another one.
    """
    over_all = {row.arm for row in aggregates if row.p_value is not None}
    found: dict[tuple[str, str], float] = {}
    for detail in (False, True):
        own = [row for row in rows if (row.arm in over_all) == detail]
        tests = {
            (row.task, row.arm): row.p_value
            for row in (own if detail else [*aggregates, *own])
            if row.p_value is not None
        }
        found |= zip(tests, holm(list(tests.values())), strict=True)

    def corrected(row: SummaryRow) -> SummaryRow:
        return dataclasses.replace(row, p_holm=found.get((row.task, row.arm)))

    return [corrected(row) for row in rows], [corrected(row) for row in aggregates]


def _row(
    tasks: Sequence[_Task], scales: Sequence[Scale], arm: str, baseline: str | None
) -> SummaryRow:
    """Return an arm's row over some tasks, each on its scale; without scales no averages."""
    runs = [run for task in tasks for run in task.arms[arm]]
    possible = _possible(tasks, scales)
    reach = possible[1] - possible[0]
    apart = -reach, reach  # what differences can be

    def estimate(
        number: Callable[[Run, Scale], float], bounds: tuple[float, float] = possible
    ) -> Estimate:
        if not scales:
            return _NOTHING
        numbers = [
            np.array([number(run, scale) for run in task.arms[arm]])
            for task, scale in zip(tasks, scales, strict=True)
        ]
        return stratified_interval([own[~np.isnan(own)] for own in numbers], bounds)

    final = estimate(lambda run, scale: scale.of(run.final))
    normalised: Estimate | None = final if len(tasks) > 1 and scales else None
    if len(tasks) == 1 and tasks[0].scale != RAW:
        own = _possible(tasks, [tasks[0].scale])
        normalised = estimate(lambda run, _: tasks[0].scale.of(run.final), own)
    drops = [run.drop for run in runs if run.drop is not None]
    compared = baseline not in (None, arm) and all(baseline in task.arms for task in tasks)
    against = _compared(tasks, scales, arm, str(baseline)) if compared else None
    units, scores = {task.unit for task in tasks}, {task.score for task in tasks}
    return SummaryRow(
        task=tasks[0].name if len(tasks) == 1 else ALL_TASKS,
        arm=arm,
        seeds=len(runs),
        diverged=sum(task.diverged.get(arm, 0) for task in tasks),
        score=scores.pop() if len(scores) == 1 else "",
        unit=tasks[0].unit if len(units) == 1 else "",
        scale=scales[0].label if scales else "",
        final=final,
        change=estimate(lambda run, scale: scale.length(run.change), apart)
        if any(not math.isnan(run.change) for run in runs)
        else None,
        normalised=normalised,
        normalised_scale=tasks[0].scale.label if normalised is not None else "",
        auc=estimate(lambda run, scale: scale.of(run.auc)),
        auc_after=estimate(lambda run, scale: scale.of(run.auc_after)),
        improvement=_improvement(tasks, arm, str(baseline)) if compared else None,
        difference=within(against.difference, apart) if against else None,
        paired=against.paired if against else None,
        p_value=against.p_value if against else None,
        p_holm=None,
        drop=estimate(
            lambda run, scale: scale.length(run.drop.drop) if run.drop else math.nan, apart
        )
        if drops
        else None,
        lost_area=estimate(
            lambda run, scale: scale.length(run.drop.area) if run.drop else math.nan, (0, math.inf)
        )
        if drops and len(units) == 1
        else None,
        recovery=_recovery(drops) if drops and len(units) == 1 else math.nan,
        recovered=sum(drop.recovered_after is not None for drop in drops),
        intervened=len(drops),
        seconds=float(np.mean([run.seconds for run in runs])),
        own_seconds=float(np.mean([run.own_seconds for run in runs])),
        updates=float(np.mean([run.updates for run in runs])),
    )


def _possible(tasks: Sequence[_Task], scales: Sequence[Scale]) -> tuple[float, float]:
    """Return between what a mean over some tasks lies, each on its scale."""
    ends = [
        scale.of(end) for task, scale in zip(tasks, scales, strict=False) for end in task.bounds
    ]
    return (min(ends), max(ends)) if ends else UNBOUNDED


def _improvement(tasks: Sequence[_Task], arm: str, baseline: str) -> Estimate:
    """Estimate how likely a run of the arm is better than one of the baseline."""
    ours, theirs = (
        [task.sign * np.array([run.final for run in task.arms[own]]) for task in tasks]
        for own in (arm, baseline)
    )
    found = probability_of_improvement(ours, theirs)
    return found if found.low == found.low else _NOTHING


def _compared(
    tasks: Sequence[_Task], scales: Sequence[Scale], arm: str, baseline: str
) -> Comparison:
    """Compare the final scores with the baseline's."""
    if not scales:
        return Comparison(_NOTHING, None, True)
    ours, theirs = (
        [
            {run.seed: scale.of(run.final) for run in task.arms[own]}
            for task, scale in zip(tasks, scales, strict=True)
        ]
        for own in (arm, baseline)
    )
    return compare(ours, theirs)


def _recovery(drops: Sequence[Drop]) -> float:
    """Return the median time to recovery; a run that never recovers took longer than all."""
    times = (math.inf if d.recovered_after is None else d.recovered_after for d in drops)
    median = statistics.median_high(times)
    return median if math.isfinite(median) else math.nan


_ESTIMATES = (
    *("final", "change", "normalised", "auc", "auc_after"),
    *("improvement", "difference", "drop", "lost_area"),
)


def csv_text(summary: Summary) -> str:
    """Return a line per task and arm, then one per arm over all tasks.

    Estimates have three columns: the value, and with `_low` and `_high` the ends of its interval.
    What is not known is left empty, and so is a difference of too few seeds to be judged.
    """
    rows = [_flat(row) for row in (*summary.rows, *summary.aggregates)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(row: SummaryRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        name, value = field.name, getattr(row, field.name)
        if name in _ESTIMATES:
            own = (judged(value) if name == "difference" else value) or _NOTHING
            flat |= {name: own.value, f"{name}_low": own.low, f"{name}_high": own.high}
        else:
            flat[name] = value
    return {name: "" if value != value else value for name, value in flat.items()}
