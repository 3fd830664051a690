"""Published curves beside ours: whether an arm's mean lies in the published band.

- `bands`: what the charts of curves draw.
- `compared`: each published moment that ours have reached, ours and theirs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from rlplast.report.view import Report
from rlplast.study.published import PublishedCurve

__all__ = ["bands", "compared", "moment_words"]

_SCORE, _UNIT = "eval/return_mean", "env_steps"  # what published curves are of
_WINDOW = 20_000  # env_steps up to a moment, whose evaluations are averaged


def compared(report: Report) -> pd.DataFrame:
    """Return every published moment that ours have reached, in the order of tasks and arms.

    Returns:
        Columns: ``task``, ``arm``, ``source`` (who published it), ``env_steps``,
        ``published_seeds``, ``published_mean``, ``published_low`` and ``published_high`` (two
        standard errors below and above), ``seeds`` (our runs with evaluations in the 20k env_steps
        up to the moment), ``mean`` (over them, of the mean of these evaluations), ``verdict``
        (where that lies: inside, above or below the band).
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
    """Return the published bands of a task's chart, as far as ours go.

    Returns:
        Of each: arm, source and seeds in words, xs, mean, low, high.
    """
    runs = report.results.of(task)
    if runs.empty or report.unit(task) != _UNIT:
        return []
    found = []
    for curve in _published(report):
        points = [point for point in curve.points if point.env_steps <= runs.total.max()]
        if curve.task == task and points:
            words = f"{curve.source}, {seeds_words(point.seeds for point in points)}"
            numbers = [(point.env_steps, point.mean, *point.band) for point in points]
            found.append((curve.arm, words, *np.array(numbers, float).T))
    return found


def seeds_words(counts: Any) -> str:
    """Return numbers of seeds in words."""
    found = sorted(set(counts))
    words = " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))
    return f"{words} seed{'s' * (found[-1] != 1)}"


def moment_words(env_steps: int) -> str:
    """Return a count of env_steps as charts write it.

    Examples:
        >>> moment_words(60_000), moment_words(1_500_000), moment_words(123)
        ('60k', '1.5M', '123')
    """
    size, unit = next((pair for pair in ((1e6, "M"), (1e3, "k")) if env_steps >= pair[0]), (1, ""))
    return f"{env_steps / size:g}{unit}"


def verdicts(report: Report) -> Iterator[str]:
    """Yield a sentence per task and arm: where our means lie, or why they are not compared."""
    rows = compared(report)
    for curve in _published(report):
        task, arm = curve.task, curve.arm
        own = rows[(rows.task == task) & (rows.arm == arm)]
        if own.empty:
            ends = [moment_words(curve.points[i].env_steps) for i in (0, -1)]
            yield (
                f"{task}, {arm}: not compared with {curve.source}, which has points from "
                f"{ends[0]} to {ends[1]} env_steps. No run of ours has {_SCORE} in the 20k "
                "env_steps up to one of them."
            )
            continue
        where = {name: own.env_steps[own.verdict == name] for name in ("inside", "above", "below")}
        parts = "; ".join(
            f"{name} at {', '.join(map(moment_words, at))}" for name, at in where.items() if len(at)
        )
        theirs = f"{curve.source}, {seeds_words(own.published_seeds)}"
        yield (
            f"{task}, {arm} ({seeds_words(own.seeds)}) and the published band ({theirs}): {parts} "
            "env_steps."
        )
