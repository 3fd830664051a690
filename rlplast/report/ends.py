"""The tables of what was measured at one moment of runs, beside their score.

- `ends`: at the end of a run.
- `after_firing`: right after the first firing, before any update.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rlplast.report.numbers import estimate
from rlplast.report.page import Row, Table
from rlplast.report.plot import metric_names
from rlplast.report.records import without_empty_columns
from rlplast.report.run_data import RunData, firing_clock
from rlplast.report.statistics import Estimate, stratified_interval
from rlplast.report.view import Report, interval_words

__all__ = ["after_firing", "ends"]


def ends(report: Report) -> Iterator[Table]:
    """Yield a table per task: the last evaluation and metrics of whole networks, by arm."""
    for task in report.tasks:
        yield from _table(report, task, report.of(task), "the last value that a run measured")


def after_firing(report: Report) -> Iterator[Table]:
    """Yield a table per task: what was measured at the clock of the first firing, by arm.

    Hooks fire before a measurement at the same clock, and updates come after it. A run without a
    firing has what it measured where one of its seed fired first. A hook with a condition fires
    after the measurement that it reads, so runs with one have no such values.
    """
    for task in report.tasks:
        runs = [r for r in report.of(task) if not any(h.get("when") for h in _hooks(r))]
        first: dict[int, dict[str, int]] = {}
        for run in runs:
            if clock := firing_clock(run):
                first.setdefault(run.seed, clock)
        clocks = [(run, firing_clock(run) or first.get(run.seed)) for run in runs]
        there = [_only_at(run, clock) for run, clock in clocks if clock]
        what = "what a run measured right after the first firing"
        yield from _table(report, task, there, what)


def _hooks(run: RunData) -> list[dict[str, Any]]:
    return run.config.get("hooks") or []


def _only_at(run: RunData, clock: dict[str, int]) -> RunData:
    """Return a run with nothing but its measurements at a clock."""
    return replace(run, metrics=[row for row in run.metrics if clock.items() <= row.items()])


def _table(report: Report, task: str, runs: list[RunData], what: str) -> Iterator[Table]:
    """Yield a table of the last values of runs, by arm, if there is more than their score."""
    keys = _keys(runs)
    if set(keys) <= {report.score(task)}:
        return
    rows = []
    for look in report.arms:
        own = [run for run in runs if run.arm == look.name]
        if own:
            cells = (estimate(_over_seeds(own, key, report.bounds(task, key))) for key in keys)
            rows.append(Row((look.name, *cells), look.index))
    caption = (
        f"Interquartile mean over seeds of {what}. In brackets: "
        f"{interval_words(report.rows(task).values())}."
    )
    table = Table(("arm", *map(_head, keys)), tuple(rows), caption, title=task)
    yield without_empty_columns(table)


def _keys(runs: list[RunData]) -> list[str]:
    """Return the names of evaluations, as they appear, then of metrics of whole networks."""
    rows = [row for run in runs for row in run.metrics]
    found = dict.fromkeys(name for row in rows for name in row if name.startswith("eval/"))
    networks = metric_names(rows).items()
    return [*found, *(f"metric/{name}/{own}" for own, names in networks for name in names)]


def _head(key: str) -> str:
    """Return a metric's name and its network's; of an evaluation the name in metrics.jsonl."""
    kind, _, rest = key.partition("/")
    name, _, network = rest.partition("/")
    return key if kind == "eval" else f"{name} ({network})"


def _over_seeds(runs: list[RunData], key: str, bounds: tuple[float, float]) -> Estimate:
    values = np.array([_last(run, key) for run in runs])
    return stratified_interval([values[np.isfinite(values)]], bounds)


def _last(run: RunData, key: str) -> float:
    """Return a run's last value of a name; not-a-number without one, or if it is no number."""
    values = [row[key] for row in run.metrics if key in row]
    return math.nan if not values or values[-1] is None else float(values[-1])
