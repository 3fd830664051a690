"""The numbers of one run: how it ended, how high its curve is, what its intervention did at once.

- `Run`, `measure`: all of them.
- `final_score`, `last_value`: two of them.
- `prefix_seconds`: what the prefixes that runs share cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlplast.report.run_data import RunData, curve, first_after, higher_is_better, hook_time
from rlplast.report.statistics import Drop, area_under_curve, drop_and_recovery

__all__ = ["Run", "final_score", "last_value", "measure", "prefix_seconds"]


@dataclass(frozen=True)
class Run:
    """The numbers of one run, in the units of its score.

    Attributes:
        task: its task.
        arm: its arm.
        seed: its seed.
        final: mean score at its end; not-a-number if it has no score.
        auc: mean height of its curve.
        auc_after: the same from where the first arm of the task leaves the others.
        drop: what its intervention did at once; None without one, or without a score on
            either side of it.
        seconds: wall-clock seconds of the whole run, its prefix included.
        own_seconds: those after it left its prefix.
        updates: optimizer updates.
    """

    task: str
    arm: str
    seed: int
    final: float
    auc: float
    auc_after: float
    drop: Drop | None
    seconds: float
    own_seconds: float
    updates: int


def final_score(xs: np.ndarray, ys: np.ndarray, total: float) -> float:
    """Return the mean of the scores in the last tenth of a run, at least of the last one.

    Args:
        xs: ascending, shape (points,).
        ys: shape (points,).
        total: the run's length.

    Returns:
        The mean; not-a-number for no points.

    Examples:
        >>> final_score(np.array([90, 95, 100]), np.array([1.0, 2.0, 4.0]), total=100)
        3.0
    """
    if len(ys) == 0:
        return math.nan
    late = 10 * xs > 9 * total
    return float(ys[late].mean() if late.any() else ys[-1])


def last_value(run: RunData, key: str) -> float:
    """Return the last number of that name in a run's metrics; 0 without one."""
    _, values = curve(run, key)
    return float(values[-1]) if len(values) else 0.0


def measure(run: RunData, key: str, start: float | None = None) -> Run:
    """Return the numbers of a run.

    Args:
        run: the run.
        key: name of its score.
        start: x from which `auc_after` counts; None for the whole curve.
    """
    xs, ys = curve(run, key)
    moment = hook_time(run)
    drop = None
    if moment is not None:
        drop = drop_and_recovery(xs, ys, moment, higher_is_better(key), first_after(run, key))
    seconds = last_value(run, "time/seconds")
    return Run(
        task=run.task,
        arm=run.arm,
        seed=run.seed,
        final=final_score(xs, ys, run.total),
        auc=area_under_curve(xs, ys),
        auc_after=area_under_curve(xs, ys, start),
        drop=drop,
        seconds=seconds,
        own_seconds=seconds - run.branch_seconds,
        updates=int(last_value(run, "updates")),
    )


def prefix_seconds(runs: Sequence[RunData], prefixes: Sequence[RunData]) -> dict[str, float]:
    """Return per task the wall-clock seconds of its prefixes, each without its own prefix.

    Args:
        runs: runs that left them.
        prefixes: the prefixes of all tasks.
    """
    reached: dict[Path, float] = {}
    for run in (*runs, *prefixes):
        branched = run.info.get("branched_from")
        if branched:
            prefix = (run.folder / str(branched.get("run"))).resolve()
            reached[prefix] = max(run.branch_seconds, reached.get(prefix, 0.0))
    seconds: dict[str, float] = {}
    for prefix in prefixes:
        # its last log line may be well before the point where its arms leave it
        end = max(last_value(prefix, "time/seconds"), reached.get(prefix.folder.resolve(), 0.0))
        seconds[prefix.task] = seconds.get(prefix.task, 0.0) + end - prefix.branch_seconds
    return seconds
