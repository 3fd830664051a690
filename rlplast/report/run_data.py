"""What one run's folder says: its config, its lines, its score.

- `RunData`, `read_run`: a run, read; its files one by one are read in `rlplast.run.read`.
- `score_key`, `higher_is_better`: which number a run is judged by, and how.
- `curve`: a measured number over the run; `hook_clock`, `hook_time`, `first_after`: where its
  intervention lies on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.clock import UNITS, Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.run.read import read_config, read_info, read_lines

__all__ = [
    "RunData",
    "curve",
    "first_after",
    "higher_is_better",
    "hook_clock",
    "hook_time",
    "read_run",
    "score_key",
]

Row = Mapping[str, Any]

_SCORES = ("eval/return_mean", "eval/accuracy", "eval/loss")
_TRAINING = ("train/return", "train/accuracy", "train/loss")
_UNIT_OF_PHASES = {"supervised": "epochs"}  # what `total: auto` counts; updates in other kinds


@dataclass(frozen=True)
class RunData:
    """One run.

    Attributes:
        task: what it was trained on.
        arm: what was done to it; "prefix" for a study's prefix.
        seed: its seed.
        folder: where it is.
        status: of its run.json; "absent" without one.
        unit: what its total counts, and its curves' x.
        total: its length.
        metrics: lines of metrics.jsonl.
        receipts: lines of receipts.jsonl.
        branch: the clock where it left its prefix; None for a run from the start.
        branch_seconds: wall-clock seconds its prefix had taken there; 0 without one.
        config: config.yaml.
        info: run.json.
    """

    task: str
    arm: str
    seed: int
    folder: Path
    status: str
    unit: str
    total: int
    metrics: list[dict[str, Any]]
    receipts: list[dict[str, Any]]
    branch: dict[str, int] | None
    branch_seconds: float
    config: dict[str, Any]
    info: dict[str, Any]


def read_run(folder: Path, task: str, arm: str, seed: int) -> RunData:
    """Read a run's folder.

    Args:
        folder: a folder with config.yaml, run.json, metrics.jsonl and receipts.jsonl.
        task: what the report calls its task.
        arm: what the report calls its arm.
        seed: its seed.

    Raises:
        DamagedFile: naming the file, and the line, that is cut or altered.
    """
    info, config = read_info(folder), read_config(folder)
    metrics = read_lines(folder / "metrics.jsonl")
    receipts = read_lines(folder / "receipts.jsonl")
    unit, total = _length(config, metrics, folder)
    _check_clocks(metrics, unit, folder / "metrics.jsonl")
    clocks = [row.get("clock") for row in receipts]
    _check_clocks(clocks, unit, folder / "receipts.jsonl")
    branch, branch_seconds = _branched(info, unit, folder / "run.json")
    return RunData(
        task=task,
        arm=arm,
        seed=seed,
        folder=folder,
        status=str(info.get("status", "absent")),
        unit=unit,
        total=total,
        metrics=metrics,
        receipts=receipts,
        branch=branch,
        branch_seconds=branch_seconds,
        config=config,
        info=info,
    )


def _branched(info: Row, unit: str, path: Path) -> tuple[dict[str, int] | None, float]:
    """Return the clock and the seconds at which a run left its prefix; (None, 0) without one."""
    said = info.get("branched_from")
    if said is None:
        return None, 0.0
    clock = said.get("clock") if isinstance(said, dict) else None
    seconds = said.get("seconds", 0.0) if isinstance(said, dict) else None
    if not isinstance(seconds, int | float):
        raise DamagedFile(f"{path}: branched_from = {said!r}: expected are a clock and seconds")
    _check_clocks([clock], unit, path)
    return clock, float(seconds)


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


def score_key(rows: Sequence[Row]) -> str:
    """Return the name of the number that a run is judged by.

    The first there is of eval/return_mean, eval/accuracy, eval/loss, the loss on a corpus (in
    alphabetical order), and without evaluations train/return, train/accuracy, train/loss.

    Raises:
        ConfigError: if nothing of it was measured.

    Examples:
        >>> score_key([{"updates": 5, "train/loss": 0.2}, {"updates": 5, "eval/loss": 0.3}])
        'eval/loss'
    """
    names = {name for row in rows for name in row}
    corpora = sorted(n for n in names if n.startswith("eval/") and n.endswith("/loss"))
    for name in (*_SCORES, *corpora, *_TRAINING):
        if name in names:
            return name
    raise ConfigError(
        f"nothing to compare runs by was measured: needed is one of {', '.join(_SCORES)}, "
        f"eval/<corpus>/loss, {', '.join(_TRAINING)}; give evaluate.every a period"
    )


def higher_is_better(key: str) -> bool:
    """Return whether a greater number is the better one: not for losses and calibration errors.

    Examples:
        >>> higher_is_better("eval/return_mean"), higher_is_better("eval/source/loss")
        (True, False)
    """
    return not key.endswith(("loss", "/ece"))


def _measured(run: RunData, key: str) -> list[Row]:
    """Return the lines that have a finite number of that name."""
    found = []
    for row in run.metrics:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float):
            raise DamagedFile(
                f"{run.folder / 'metrics.jsonl'}: {key} = {value!r} at {row[run.unit]} "
                f"{run.unit}: expected is a number or null"
            )
        if np.isfinite(value):
            found.append(row)
    return found


def curve(run: RunData, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a number over a run, as (xs, ys), each of shape (points,).

    Args:
        run: the run; xs are in its `unit`, ascending, and may repeat where one of its counts
            spans several evaluations.
        key: a name of metrics.jsonl; lines without it, or with null, are left out.

    Raises:
        DamagedFile: if it is neither a number nor null somewhere.
    """
    rows = _measured(run, key)
    xs = np.array([row[run.unit] for row in rows], dtype=float)
    return xs, np.array([row[key] for row in rows], dtype=float)


def hook_clock(run: RunData) -> dict[str, int] | None:
    """Return the clock of a run's intervention.

    That is the first firing of a scheduled hook, of a run that left a prefix the first from
    there on: what fired in the prefix is common to all arms. Without one, as in a baseline,
    it is where the run left its prefix, so that all arms are compared at one place; else None.
    Hooks that fire after every update have no such moment.
    """
    for row in run.receipts:
        clock = row["clock"]
        late = run.branch is None or clock[run.unit] >= run.branch[run.unit]
        if late and row.get("norm_after") is not None:
            return clock
    return run.branch


def hook_time(run: RunData) -> float | None:
    """Return where in units of its curves a run's intervention lies; see `hook_clock`."""
    clock = hook_clock(run)
    return None if clock is None else float(clock[run.unit])


def first_after(run: RunData, key: str) -> int | None:
    """Return the index in `curve` of the first point after a run's intervention.

    Hooks fire before what is measured at the same clock, so a point of the intervention's own
    clock is after it. The last point of a phase has that clock's updates and epochs but not its
    phase: it is before. None for a run without an intervention; the number of points if it was
    the last.
    """
    clock = hook_clock(run)
    if clock is None:
        return None
    rows = _measured(run, key)
    before = [any(row.get(u, n) < n for u, n in clock.items() if u in UNITS) for row in rows]
    return sum(before)
