"""What one run's folder says: its config, its lines, its score, and the numbers made of them.

- `RunData`, `read_run`: a run, read; its files one by one are read in `rlplast.run.read`.
- `curve`, `measured`: a measured number over the run; the lines that have it.
- `firing_clock`, `hook_time`, `first_after`, `between_tasks`: where the run's intervention lies.
- `Run`, `measure`: how a run ended, how high its curve is, what its intervention did at once.
- `prefix_seconds`: what the prefixes that runs share cost; `updates_done`: updates of all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.clock import UNITS, Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.report.drops import Drop, drop_and_recovery
from rlplast.report.statistics import area_under_curve
from rlplast.run.read import read_best, read_config, read_info, read_lines
from rlplast.run.tasks import tasks_of
from rlplast.training.best import Best, higher_is_better

__all__ = [
    "EVALUATIONS",
    "TRAINING",
    "Run",
    "RunData",
    "between_tasks",
    "curve",
    "firing_clock",
    "first_after",
    "hook_time",
    "measure",
    "measured",
    "prefix_seconds",
    "read_run",
    "task_length",
    "updates_done",
]

Row = Mapping[str, Any]

EVALUATIONS = ("eval/return_mean", "eval/accuracy", "eval/loss")
TRAINING = ("train/return", "train/accuracy", "train/loss")
# Streams whose phases are tasks → the score a run on them is judged by.
_SCORE_OF_TASKS = {
    "random_labels": "eval/accuracy",
    "permuted_pixels": "eval/online_accuracy",
    "flipped_bits": "eval/online_loss",
}
_UNIT_OF_PHASES = {"supervised": "epochs"}  # what `total: auto` counts; updates in other kinds


@dataclass(frozen=True)
class RunData:
    """One run, which is done.

    Attributes:
        task: what it was trained on.
        arm: what was done to it; "prefix" for a study's prefix.
        unit: what its total counts, and its curves' x.
        total: its length.
        score: the number it is judged by, a name in metrics.jsonl; "" if nothing was measured.
        final_share: share of the run whose scores its final score averages, in (0, 1].
        branch: the clock where it left its prefix; None for a run from the start.
        branch_seconds: wall-clock seconds its prefix had taken there; 0 without one.
        config: config.yaml.
        info: run.json.
        best: its best evaluation, if it keeps the checkpoint of that.
    """

    task: str
    arm: str
    seed: int
    folder: Path
    unit: str
    total: int
    score: str
    final_share: float
    metrics: list[dict[str, Any]]
    receipts: list[dict[str, Any]]
    branch: dict[str, int] | None
    branch_seconds: float
    config: dict[str, Any]
    info: dict[str, Any]
    best: Best | None


def read_run(folder: Path, task: str, arm: str, seed: int) -> RunData:
    """Read a run's folder: config.yaml, run.json, metrics.jsonl, receipts.jsonl, best.json.

    Raises:
        DamagedFile: naming the file, and the line, that is cut or altered.
    """
    info, config = read_info(folder), read_config(folder)
    metrics = read_lines(folder / "metrics.jsonl")
    receipts = read_lines(folder / "receipts.jsonl")
    unit, total = _length(config, metrics, folder)
    origin = info.get("branched_from") or {}
    _check_clocks(metrics, unit, folder / "metrics.jsonl")
    _check_clocks([row.get("clock") for row in receipts], unit, folder / "receipts.jsonl")
    _check_clocks([origin.get("clock")] if origin else [], unit, folder / "run.json")
    best = read_best(folder)
    if best is not None:
        _check_clocks([best.clock], unit, folder / "checkpoints" / "best.json")
    return RunData(
        task=task,
        arm=arm,
        seed=seed,
        folder=folder,
        unit=unit,
        total=total,
        score=_score(metrics, config),
        final_share=float((config.get("evaluate") or {}).get("final", 0.1)),
        metrics=metrics,
        receipts=receipts,
        branch=origin.get("clock"),
        branch_seconds=float(origin.get("seconds", 0.0)),
        config=config,
        info=info,
        best=best,
    )


def _length(config: Row, metrics: Sequence[Row], folder: Path) -> tuple[str, int]:
    """Return the unit of a run's total and its value; where its phases say it, the last x."""
    text = str(config.get("total", "auto"))
    unit = _UNIT_OF_PHASES.get(str(config.get("kind")), "updates")
    if text != "auto":
        try:
            time = Time.parse(text, "total")
        except ConfigError as error:
            raise DamagedFile(f"{folder / 'config.yaml'}: {error}") from error
        if time.unit in UNITS and time.unit != "phase":  # a phase is too long to be an axis
            return time.unit, int(time.value)
    return unit, int(metrics[-1].get(unit, 0)) if metrics else 0


def _check_clocks(clocks: Sequence[Any], unit: str, path: Path) -> None:
    """Check that every line counts `unit`, and that it never goes back."""
    last = 0
    for number, clock in enumerate(clocks, start=1):
        x = clock.get(unit) if isinstance(clock, dict) else None
        if not isinstance(x, int) or x < last:
            raise DamagedFile(
                f"{path}, line {number}: {unit} = {x!r}, expected is a count of at least {last}"
            )
        last = x


def _score(rows: Sequence[Row], config: Row) -> str:
    """Return the first there is of `EVALUATIONS`, the loss on a corpus, and `TRAINING`.

    A stream of tasks has a score of its own.
    """
    names = {name for row in rows for name in row}
    of_tasks = _SCORE_OF_TASKS.get(str(_stream(config).get("name")), "")
    if of_tasks in names:
        return of_tasks
    corpora = sorted(n for n in names if n.startswith("eval/") and n.endswith("/loss"))
    return next((name for name in (*EVALUATIONS, *corpora, *TRAINING) if name in names), "")


def _stream(config: Row) -> Row:
    return config.get("stream") or {}


def task_length(config: Row) -> int | None:
    """Return the epochs of each task, where a run's phases are tasks of one length; else None."""
    stream = _stream(config)
    epochs = stream.get("epochs")
    return epochs if stream.get("name") in _SCORE_OF_TASKS and isinstance(epochs, int) else None


def measured(run: RunData, key: str) -> list[dict[str, Any]]:
    """Return the lines that have a finite number of that name."""
    return [row for row in run.metrics if row.get(key) is not None and math.isfinite(row[key])]


def curve(run: RunData, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a number over a run, as (xs, ys), each of shape (points,).

    Args:
        run: the run; xs are in its `unit`, ascending, and may repeat where one of its counts
            spans several evaluations.
        key: a name of metrics.jsonl; lines without it, or with null, are left out.
    """
    rows = measured(run, key)
    xs = np.array([row[run.unit] for row in rows], dtype=float)
    return xs, np.array([row[key] for row in rows], dtype=float)


def firing_clock(run: RunData) -> dict[str, int] | None:
    """Return the clock of a run's first firing of a scheduled hook; None without one.

    Of a run that left a prefix it is the first from there on: what fired in the prefix is common to
    all arms. Hooks that fire after every update have no such moment.
    """
    for row in run.receipts:
        clock = row["clock"]
        late = run.branch is None or clock[run.unit] >= run.branch[run.unit]
        if late and row.get("norm_after") is not None:
            return clock
    return None


def _hook_clock(run: RunData) -> dict[str, int] | None:
    """Return the clock of a run's intervention: its first firing.

    Without one, as in a baseline, it is where the run left its prefix, so that all arms are
    compared at one place; else None.
    """
    return firing_clock(run) or run.branch


def hook_time(run: RunData) -> float | None:
    """Return where in units of its curves a run's intervention lies; None without one."""
    clock = _hook_clock(run)
    return None if clock is None else float(clock[run.unit])


def first_after(run: RunData, clock: Mapping[str, int] | None = None) -> int:
    """Return the index in the score's `curve` of the first point after the run's intervention.

    Hooks fire before an evaluation at the same clock, so such a point of the intervention's own
    clock is after it. Other scores (train/return) are of what lies behind a point: it is before.
    The last point of a phase has that clock's updates and epochs but not its
    phase: it is before. The number of points if the intervention was the last. With a `clock` it is
    of the firing at that.
    """
    clock = clock or _hook_clock(run) or {}
    counts = {unit: count for unit, count in clock.items() if unit in UNITS}
    behind = not run.score.startswith("eval/")

    def before(row: Mapping[str, Any]) -> bool:
        if any(row.get(unit, count) < count for unit, count in counts.items()):
            return True
        return behind and all(row.get(unit, count) == count for unit, count in counts.items())

    return sum(map(before, measured(run, run.score)))


def between_tasks(run: RunData, after: int) -> bool:
    """Return whether an agent's scores around an intervention are of two tasks.

    Args:
        run: the run.
        after: what `first_after` returns for it.
    """
    rows = measured(run, run.score)
    phases = {row.get("phase") for row in rows[max(after - 1, 0) : after + 1]}
    return len(phases) > 1 and len(tasks_of(run.config)) > 1


@dataclass(frozen=True)
class Run:
    """The numbers of one run, in the units of its score.

    Attributes:
        final: mean score in the last tenth of it, or the share that `evaluate.final` says, at
            least the last score; not-a-number if it has none, or if the last one is no finite
            number.
        change: that minus the mean score in the first tenth, of runs on tasks, which are
            drawn alike; else not-a-number.
        auc: mean height of its curve.
        auc_after: the same from where the first arm of the task leaves the others.
        drop: what its intervention did at once; None without one, or without a score on
            either side of it; of an agent on a sequence, without scores of one task.
        seconds: wall-clock seconds of the whole run, its prefix included.
        own_seconds: those after it left its prefix.
        updates: optimizer updates.
    """

    task: str
    arm: str
    seed: int
    final: float
    change: float
    auc: float
    auc_after: float
    drop: Drop | None
    seconds: float
    own_seconds: float
    updates: int


def measure(run: RunData, start: float | None) -> Run:
    """Return the numbers of a run; `auc_after` counts from `start`, None for the whole curve."""
    xs, ys = curve(run, run.score)
    late = run.total - xs < round(run.final_share * run.total, 6)  # 0.1 is not a tenth
    ends = ys[late] if late.any() else ys[-1:]
    final = float(ends.mean()) if len(ends) and not _diverged(run) else math.nan
    early = ys[10 * xs <= run.total] if task_length(run.config) else ys[:0]
    moment, drop = hook_time(run), None
    after = first_after(run)
    if moment is not None and not between_tasks(run, after):
        drop = drop_and_recovery(xs, ys, moment, after, higher_is_better(run.score))
    seconds = _last(run, "time/seconds")
    return Run(
        task=run.task,
        arm=run.arm,
        seed=run.seed,
        final=final,
        change=final - float(early.mean()) if len(early) else math.nan,
        auc=area_under_curve(xs, ys),
        auc_after=area_under_curve(xs, ys, start),
        drop=drop,
        seconds=seconds,
        own_seconds=seconds - run.branch_seconds,
        updates=int(_last(run, "updates")),
    )


def _diverged(run: RunData) -> bool:
    """Whether the last value of a run's score is no finite number."""
    values = [row[run.score] for row in run.metrics if run.score in row]
    return bool(values) and (values[-1] is None or not math.isfinite(values[-1]))


def _last(run: RunData, key: str) -> float:
    """Return the last number of that name in a run's metrics; 0 without one."""
    rows = measured(run, key)
    return float(rows[-1][key]) if rows else 0.0


def prefix_seconds(runs: Sequence[RunData], prefixes: Sequence[RunData]) -> dict[str, float]:
    """Return per task the wall-clock seconds of its prefixes, each without its own prefix.

    The runs are those that left the prefixes.
    """
    left = _left(runs, prefixes)
    seconds: dict[str, float] = {}
    for prefix in prefixes:
        # its last log line may be well before the point where its arms leave it
        ends = [run.branch_seconds for run in left.get(prefix.folder.resolve(), ())]
        end = max([_last(prefix, "time/seconds"), *ends])
        seconds[prefix.task] = seconds.get(prefix.task, 0.0) + end - prefix.branch_seconds
    return seconds


def updates_done(runs: Sequence[RunData], prefixes: Sequence[RunData]) -> int:
    """Return the optimizer updates of all runs and their prefixes, shared ones once."""
    left, total = _left(runs, prefixes), 0
    for run in (*runs, *prefixes):
        ends = [own.branch["updates"] for own in left.get(run.folder.resolve(), ()) if own.branch]
        start = run.branch["updates"] if run.branch else 0
        total += max([int(_last(run, "updates")), *ends]) - start
    return total


def _left(runs: Sequence[RunData], prefixes: Sequence[RunData]) -> dict[Path, list[RunData]]:
    """Return folder of a prefix → the runs that left it."""
    found: dict[Path, list[RunData]] = {}
    for run in (*runs, *prefixes):
        branched = run.info.get("branched_from")
        if branched:
            prefix = (run.folder / str(branched.get("run"))).resolve()
            found.setdefault(prefix, []).append(run)
    return found
