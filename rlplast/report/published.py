"""Published curves beside ours: whether an arm's mean lies in the published band."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from rlplast.report.view import Report
from rlplast.study.published import PublishedCurve

__all__ = ["bands", "compared", "uncompared"]

_SCORE, _UNIT = "eval/return_mean", "env_steps"  # what published curves are of
_WINDOW = 20_000  # env_steps up to a moment, whose evaluations are averaged


def compared(report: Report) -> pd.DataFrame:
    """Return every published moment that ours have reached, in the order of tasks and arms.

    Returns:
        Columns: ``task``, ``arm``, ``source``, ``env_steps``, ``published_seeds``,
            ``published_mean``, ``published_low`` and ``published_high`` (two standard errors below
            and above), ``seeds`` (our runs with evaluations in the 20k env_steps up to the moment),
            ``mean`` (over them, of the mean of these evaluations), ``verdict`` (inside, above or
            below the band).
    """
    rows = []
    for curve in _published(report):
        runs = report.results.of(curve.task, curve.arm).index
        for point in curve.points:
            found = (_mean_at(report, run, point.env_steps) for run in runs)
            means = [mean for mean in found if mean is not None]
            if means:
                mean, (low, high) = float(np.mean(means)), point.band
                verdict = "above" if mean > high else "below" if mean < low else "inside"
                about = (curve.task, curve.arm, curve.source, point.env_steps)
                theirs = (point.seeds, point.mean, low, high)
                rows.append((*about, *theirs, len(means), mean, verdict))
    columns = ["task", "arm", "source", "env_steps", "published_seeds", "published_mean"]
    columns += ["published_low", "published_high", "seeds", "mean", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def uncompared(report: Report, rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on each curve that is not among the rows of `compared`, and why."""
    for own in _published(report):
        if not ((rows.task == own.task) & (rows.arm == own.arm)).any():
            yield (
                f"{own.task}, {own.arm}: not compared with {own.source}, as no run that reached "
                f"one of its moments ({own.points[0].env_steps:,} to {own.points[-1].env_steps:,} "
                f"env_steps) has {_SCORE} in the {_WINDOW:,} up to it."
            )


def _published(report: Report) -> Iterator[PublishedCurve]:
    """Yield what was published of arms that have runs, in the order of tasks and arms."""
    curves = {(own.task, own.arm): own for own in report.results.published}
    for task in report.tasks:
        for look in report.looks:
            curve = curves.get((task, look.name))
            if curve is not None and len(report.results.of(task, look.name)):
                yield curve


def _mean_at(report: Report, run: int, moment: int) -> float | None:
    """Return a run's mean evaluation up to a moment; None if it ended before, or has none."""
    rows = report.results.named(_SCORE, run).dropna(subset="value")
    own = report.results.numbers
    if rows.empty or _UNIT not in rows or own[own.run == run][_UNIT].iloc[-1] < moment:
        return None
    distance = moment - rows[_UNIT]
    near = rows.value[(distance >= 0) & (distance < _WINDOW)]
    return float(near.mean()) if len(near) else None


def bands(report: Report, task: str) -> list[tuple[str, str, np.ndarray, Any, Any, Any]]:
    """Return the published bands of a task's chart: arm, source in words, xs, mean, low, high."""
    runs = report.results.of(task)
    if runs.empty or report.unit(task) != _UNIT:
        return []
    found = []
    for curve in _published(report):
        points = [point for point in curve.points if point.env_steps <= runs.total.max()]
        if curve.task == task and points:
            seeds = dict.fromkeys(
                (min(own.seeds for own in points), max(own.seeds for own in points))
            )
            words = f"{curve.source}, {' to '.join(map(str, seeds))} seeds"
            numbers = [(point.env_steps, point.mean, *point.band) for point in points]
            found.append((curve.arm, words, *np.array(numbers, float).T))
    return found
