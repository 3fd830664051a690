"""Runs through tasks that follow one another: how each visit of a task went, in numbers.

- `tasks_of`: the name of each phase's task, by a run's config.
- `TaskScores`, `visits`: the scores of one run, a number per phase.
- `by_task`, `revisits`, `late_change`, `plasticity_loss`, `forward_transfer`, `forgetting`: what
  they say; pure functions of plain arrays.
- `task_curve`: the score of one task over the whole run.
- `SequenceRow`, `sequence_rows`: the same of arms, with intervals over seeds.

All scores are in the sense of better: losses count with a minus. Forward transfer and forgetting
are Wolczyk et al. 2021's (Continual World, arXiv:2105.10919).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.report.run_data import RunData
from rlplast.report.statistics import UNBOUNDED, Estimate, area_under_curve, stratified_interval
from rlplast.run.tasks import tasks_of as agent_tasks
from rlplast.training.best import higher_is_better

__all__ = [
    "ORACLE",
    "SequenceRow",
    "TaskScores",
    "by_task",
    "forgetting",
    "forward_transfer",
    "late_change",
    "plasticity_loss",
    "revisits",
    "sequence_rows",
    "task_curve",
    "tasks_of",
    "visits",
]

ORACLE = "oracle"  # the arm that begins every task with a new agent
_STREAMS = ("random_labels", "permuted_pixels", "flipped_bits")  # whose phases are tasks


def tasks_of(config: Mapping[str, Any]) -> list[str]:
    """Return the name of each phase's task; none for a run that is no sequence of tasks.

    Examples:
        >>> tasks_of({"stream": {"name": "random_labels", "phases": 2}})
        ['task-0', 'task-1']
    """
    stream = config.get("stream") or {}
    if stream.get("name") in _STREAMS:
        return [f"task-{k}" for k in range(int(stream.get("phases") or 10))]
    names = agent_tasks(config)
    return names if len(names) > 1 else []


@dataclass(frozen=True)
class TaskScores:
    """The scores of one run, in the sense of better; not-a-number where nothing was measured.

    Attributes:
        tasks: the name of each phase's task.
        means: mean height of a task's curve while it was trained, shape (phases,).
        ends: its score at the end of that, shape (phases,).
        finals: each task's score at the end of the run.
    """

    tasks: tuple[str, ...]
    means: np.ndarray
    ends: np.ndarray
    finals: Mapping[str, float]


def visits(run: RunData) -> TaskScores:
    """Return the scores of a run by phase; of phases that it began."""
    sign = 1.0 if higher_is_better(run.score) else -1.0
    names = tasks_of(run.config)
    phases: dict[int, list[Mapping[str, Any]]] = {}
    for row in run.metrics:
        phases.setdefault(int(row.get("phase", 0)), []).append(row)
    tasks = tuple(names[: 1 + max(phases, default=-1)])
    means, ends = np.full(len(tasks), math.nan), np.full(len(tasks), math.nan)
    finals = dict.fromkeys(tasks, math.nan)
    for number, task in enumerate(tasks):
        rows = phases.get(number, [])
        xs, ys = _points(rows, run.unit, run.score)
        _, own = _points(rows, run.unit, _key(run, task))
        means[number] = sign * area_under_curve(xs, ys)
        ends[number] = sign * (own if len(own) else ys)[-1] if len(own) or len(ys) else math.nan
    for task in finals:
        _, own = _points(phases.get(len(tasks) - 1, []), run.unit, _key(run, task))
        finals[task] = sign * float(own[-1]) if len(own) else math.nan
    return TaskScores(tasks, means, ends, finals)


def _key(run: RunData, task: str) -> str:
    """Return what the score of one task is called, as ``eval/<task>/return_mean``."""
    return run.score.replace("eval/", f"eval/{task}/", 1)


def _points(rows: Iterable[Mapping[str, Any]], unit: str, key: str) -> tuple[Any, Any]:
    """Return a number over some lines, as (xs, ys), each of shape (points,)."""
    found = [row for row in rows if row.get(key) is not None and math.isfinite(row[key])]
    return np.array([float(row[unit]) for row in found]), np.array([row[key] for row in found])


def task_curve(run: RunData, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a task's score over the whole run, as (xs, ys), in the score's own sense.

    While a task is trained, the score of the run is its score.
    """
    tasks, own = tasks_of(run.config), _key(run, task)
    found: list[tuple[float, float]] = []
    for row in run.metrics:
        here = row.get("phase", 0)
        current = here < len(tasks) and tasks[here] == task
        value = row.get(own)
        if value is None and current:
            value = row.get(run.score)
        if value is not None and math.isfinite(value):
            found.append((float(row[run.unit]), float(value)))
    points = np.array(found, dtype=float).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def by_task(tasks: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of each task, by visit, tasks in the order of their first visit."""
    found: dict[str, list[float]] = {}
    for task, value in zip(tasks, values, strict=True):
        found.setdefault(task, []).append(float(value))
    return {task: np.array(own) for task, own in found.items()}


def revisits(tasks: Sequence[str], means: np.ndarray) -> float:
    """Return how much better later visits of a task are than its first, on average.

    Args:
        tasks: the name of each phase's task.
        means: the score of each visit, shape (phases,).

    Returns:
        The mean of visit j minus visit 1 over all tasks and all j > 1; not-a-number if no task
        comes again.
    """
    changes = [own[1:] - own[0] for own in by_task(tasks, means).values()]
    return _mean(np.concatenate([np.empty(0), *changes]))


def late_change(tasks: Sequence[str], means: np.ndarray) -> float:
    """Return how much better the second half of the tasks is than the first task, on average.

    That is plasticity where tasks are equally hard by construction, as under random labels or
    permuted inputs; not-a-number where a task comes again.
    """
    if len(set(tasks)) < len(tasks) or len(tasks) < 2:
        return math.nan
    return _mean(means[(len(means) + 1) // 2 :] - means[0])


def plasticity_loss(ends: np.ndarray, oracle: np.ndarray) -> float:
    """Return how much better a new agent ends its tasks, on average over phases but the first.

    Args:
        ends: score at the end of each phase, shape (phases,).
        oracle: those of a run with a new agent in every phase, likewise.
    """
    count = min(len(ends), len(oracle))
    return _mean(oracle[1:count] - ends[1:count])


def forward_transfer(
    tasks: Sequence[str], means: np.ndarray, oracle: np.ndarray, shares: bool
) -> float:
    """Return how much better tasks are learned than by a new agent, over first visits but phase 0.

    Args:
        tasks: the name of each phase's task.
        means: mean height of the curve of each phase, shape (phases,).
        oracle: those of a run with a new agent in every phase, likewise.
        shares: scores are from 0 to 1; then each difference is a share of what the new agent
            lacks, (mean − oracle) / (1 − oracle), else it is the plain difference.
    """
    count = min(len(means), len(oracle))
    first = [k for k in range(1, count) if tasks[k] not in tasks[:k]]
    difference = means[first] - oracle[first]
    if shares:
        left = 1 - oracle[first]
        difference = np.divide(difference, left, np.full(len(first), math.nan), where=left > 0)
    return _mean(difference)


def forgetting(tasks: Sequence[str], ends: np.ndarray, finals: Mapping[str, float]) -> float:
    """Return how much of what a task had reached is lost at the end of the run, on average.

    Args:
        tasks: the name of each phase's task.
        ends: score at the end of each phase, shape (phases,).
        finals: score of each task at the end of the run.

    Returns:
        The mean over tasks, but the one trained last, of the score at the end of its last visit
        minus its final score; not-a-number without others.
    """
    lost = [
        own[-1] - finals[task] for task, own in by_task(tasks, ends).items() if task != tasks[-1]
    ]
    return _mean(np.array(lost))


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


@dataclass(frozen=True)
class SequenceRow:
    """An arm's numbers, estimated over its seeds; None where there are none.

    Attributes:
        seeds: finished runs.
        revisits: as the function of that name; so are the others.
        by_visit: task → mean height of its curve at the first visit, then what each later visit
            adds to it.
        lost: task → its forgetting; not of the task that is trained last.
    """

    seeds: int
    revisits: Estimate | None
    late_change: Estimate | None
    plasticity_loss: Estimate | None
    forward_transfer: Estimate | None
    forgetting: Estimate | None
    by_visit: Mapping[str, Sequence[Estimate | None]]
    lost: Mapping[str, Estimate | None]


def sequence_rows(
    arms: Mapping[str, Mapping[int, TaskScores]], shares: bool
) -> dict[str, SequenceRow]:
    """Return the numbers of each arm, from the visits of its runs by seed.

    An arm called ``oracle`` is what others are compared with, seed by seed; `shares` is that of
    `forward_transfer`.
    """
    oracle = arms.get(ORACLE, {})
    return {
        arm: _row(own, {} if arm == ORACLE else oracle, shares) for arm, own in arms.items() if own
    }


def _row(
    runs: Mapping[int, TaskScores], oracle: Mapping[int, TaskScores], shares: bool
) -> SequenceRow:
    own = list(runs.values())
    pairs = [(runs[seed], oracle[seed]) for seed in sorted(runs.keys() & oracle.keys())]
    changes = [_changes(run) for run in own]
    names = list(dict.fromkeys(task for run in own for task in run.tasks))
    counts = {task: max(len(found.get(task, ())) for found in changes) for task in names}
    apart = (-1.0, 1.0) if shares else UNBOUNDED  # what differences of scores can be
    return SequenceRow(
        seeds=len(own),
        revisits=_estimate((revisits(run.tasks, run.means) for run in own), apart),
        late_change=_estimate((late_change(run.tasks, run.means) for run in own), apart),
        plasticity_loss=_estimate(
            (plasticity_loss(run.ends, new.ends) for run, new in pairs), apart
        ),
        forward_transfer=_estimate(
            forward_transfer(run.tasks, run.means, new.means, shares) for run, new in pairs
        ),
        forgetting=_estimate((forgetting(run.tasks, run.ends, run.finals) for run in own), apart),
        by_visit={
            task: [
                _estimate(
                    (found[task][j] for found in changes if j < len(found.get(task, ()))),
                    apart if j or not shares else (0.0, 1.0),
                )
                for j in range(count)
            ]
            for task, count in counts.items()
        },
        lost={
            task: _estimate(
                (
                    by_task(run.tasks, run.ends)[task][-1] - run.finals[task]
                    for run in own
                    if task in run.tasks[:-1] and task != run.tasks[-1]
                ),
                apart,
            )
            for task in names
        },
    )


def _changes(run: TaskScores) -> dict[str, np.ndarray]:
    """Return each task's mean score at its first visit, then what each later visit adds."""
    found = by_task(run.tasks, run.means)
    return {task: np.append(own[:1], own[1:] - own[0]) for task, own in found.items()}


def _estimate(values: Iterable[float], bounds: tuple[float, float] = UNBOUNDED) -> Estimate | None:
    known = np.array([value for value in values if not math.isnan(value)])
    return stratified_interval([known], bounds) if len(known) else None
