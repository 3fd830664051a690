"""Stretches of a run that a report looks at closely, and what was measured of many numbers there.

- `iterations`, `champion`: the best evaluation of each iteration, and the best iteration.
- `Stretch`, `stretches`: iteration 0 and the champion; of runs without iterations, the whole run.
- `numbers_of`, `last_density`, `path_of`: sketches and densities, number by number, as arrays.
- `starts_at_initial`: whether a stretch begins at θ0.

An iteration is a phase of a stream that repeats its data: training again, from some start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.report.run_data import Row, RunData, measured
from rlplast.training.best import higher_is_better

__all__ = [
    "Stretch",
    "champion",
    "epoch_of",
    "has_iterations",
    "iterations",
    "last_density",
    "numbers_of",
    "path_of",
    "rows_of",
    "starts_at_initial",
    "stretches",
]


@dataclass(frozen=True)
class Stretch:
    """A stretch of a run: its name, the same for all runs, and its iteration, None for all."""

    words: str
    phase: int | None


def has_iterations(run: RunData) -> bool:
    """Return whether a run's phases train on the same data again and again."""
    return (run.config.get("stream") or {}).get("name") == "repeated"


def iterations(run: RunData) -> dict[int, dict[str, Any]]:
    """Return number of an iteration → the line of its best evaluation, the first of equal ones."""
    found: dict[int, dict[str, Any]] = {}
    for row in measured(run, run.score) if has_iterations(run) else ():
        number = _phase(row)
        if number not in found or _quality(run, row) > _quality(run, found[number]):
            found[number] = row
    return found


def champion(run: RunData) -> int | None:
    """Return the iteration with the best evaluation but for iteration 0; None without one."""
    found = iterations(run)
    later = [number for number in found if number > 0]
    return max(later, key=lambda number: _quality(run, found[number]), default=None)


def stretches(run: RunData) -> list[Stretch]:
    """Return iteration 0 and the champion; of a run without iterations all of it."""
    if not has_iterations(run):
        return [Stretch("whole run", None)]
    best = champion(run)
    return [Stretch("iteration 0", 0), *([] if best is None else [Stretch("champion", best)])]


def epoch_of(run: RunData, row: Row) -> float:
    """Return the epochs of an iteration that are done at a line of it."""
    return float(row["epochs"] - _phase(row) * run.config["stream"]["epochs"])


def rows_of(run: RunData, stretch: Stretch) -> list[dict[str, Any]]:
    """Return the lines of a stretch."""
    return [row for row in run.metrics if stretch.phase is None or _phase(row) == stretch.phase]


def numbers_of(row: Row, key: str) -> np.ndarray | None:
    """Return the numbers that a line has under ``key/0``, ``key/1``, …; None without, or of NaN."""

    def found() -> Iterator[float]:
        number = 0
        while (name := f"{key}/{number}") in row:
            yield np.nan if row[name] is None else row[name]
            number += 1

    numbers = np.fromiter(found(), float)
    return numbers if len(numbers) and np.isfinite(numbers).all() else None


def last_density(run: RunData, stretch: Stretch, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the last density measured in a stretch of a run, None if there is none.

    Edges of its n cells, (n + 1,), and the values in them, (n,).
    """
    for row in reversed(rows_of(run, stretch)):
        values, low, high = numbers_of(row, key), row.get(f"{key}/low"), row.get(f"{key}/high")
        if values is not None and low is not None and high is not None:
            return np.linspace(low, high, len(values) + 1), values
    return None


def path_of(run: RunData, stretch: Stretch, key: str) -> np.ndarray:
    """Return the sketches of a stretch, (points, numbers)."""
    found = [numbers_of(row, key) for row in rows_of(run, stretch)]
    known = [own for own in found if own is not None and len(own) > 1]  # a plane has two
    return np.stack(known) if known else np.empty((0, 0))


def starts_at_initial(run: RunData, stretch: Stretch, network: str) -> bool:
    """Return whether a network's weights were θ0 when a stretch of its run began.

    A run begins there, unless a hook fires before the first update. A later iteration does if the
    last hook that fires as it begins puts all weights back. False where that is not certain.
    """
    fired = [own for own in run.receipts if own["network"] == network]
    if not stretch.phase:
        return all(own["clock"]["updates"] > 0 for own in fired)
    begin = {"phase": stretch.phase, "epochs": stretch.phase * run.config["stream"]["epochs"]}
    here = [own["method"] for own in fired if begin.items() <= own["clock"].items()]
    rows = [row for row in run.config["hooks"] if here and row["method"] == here[-1]]
    return bool(rows) and all(map(_puts_back, rows))


def _puts_back(hook: Row) -> bool:
    """Return whether a firing of a row of a config sets all weights to θ0."""
    stored = (hook.get("params") or {}).get("init") == "stored"
    puts = hook["method"] == "persistent" or (hook["method"] == "full_reset" and stored)
    return puts and hook.get("scope") in (None, "all")


def _phase(row: Row) -> int:
    return int(row.get("phase", 0))


def _quality(run: RunData, row: Row) -> float:
    return row[run.score] if higher_is_better(run.score) else -row[run.score]
