"""The table of what was measured at the end of runs, beside their score."""

import math
from collections.abc import Iterator

import numpy as np

from rlplast.report.numbers import estimate
from rlplast.report.page import Row, Table
from rlplast.report.plot import metric_names
from rlplast.report.records import without_empty_columns
from rlplast.report.run_data import RunData
from rlplast.report.statistics import Estimate, stratified_interval
from rlplast.report.view import Report, interval_words

__all__ = ["ends"]


def ends(report: Report) -> Iterator[Table]:
    """Yield a table per task: the last evaluation and metrics of whole networks, by arm."""
    for task in report.tasks:
        keys = _keys(report.of(task))
        if set(keys) <= {report.score(task)}:
            continue
        rows = []
        for look in report.arms:
            runs = report.of(task, look.name)
            if runs:
                cells = (estimate(_over_seeds(runs, key, report.bounds(task, key))) for key in keys)
                rows.append(Row((look.name, *cells), look.index))
        caption = (
            "Interquartile mean over seeds of the last value that a run measured. In brackets: "
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
