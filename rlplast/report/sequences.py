"""Runs through tasks that follow one another: how each visit of a task went, in numbers.

All scores are in the sense of better: losses count with a minus. Forward transfer and forgetting
are Wolczyk et al. 2021's (Continual World, arXiv:2105.10919).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from rlplast.report.estimators import UNBOUNDED, area_under_curve, stratified_interval
from rlplast.report.frame import SCORE_OF_TASKS, Results
from rlplast.run.tasks import tasks_of
from rlplast.training.best import higher_is_better

__all__ = [
    "ORACLE",
    "forgetting",
    "forward_transfer",
    "late_change",
    "plasticity_loss",
    "revisits",
    "sequence",
    "task_curve",
    "tasks_in",
    "trained",
    "visits",
]

ORACLE = "oracle"  # the arm that begins every task with a new agent
NUMBERS = ("revisits", "late_change", "plasticity_loss", "forward_transfer", "forgetting")


def tasks_in(config: Mapping[str, Any]) -> list[str]:
    """Return the name of each phase's task; none for a run that is no sequence of tasks.

    Examples:
        >>> tasks_in({"stream": {"name": "random_labels", "phases": 2}})
        ['task-0', 'task-1']
    """
    stream = config.get("stream") or {}
    if stream.get("name") in SCORE_OF_TASKS:
        return [f"task-{k}" for k in range(int(stream.get("phases") or 10))]
    names = tasks_of(config)
    return names if len(names) > 1 else []


def visits(results: Results, runs: Iterable[int]) -> pd.DataFrame:
    """Return a row per run and phase that it began.

    Returns:
        Columns: ``run``, ``arm``, ``seed``, ``phase``, ``name`` (the task's), ``mean`` (height of
            its curve while it was trained), ``end`` (its score at the end of that), ``last`` (that
            at the end of the run); NaN where nothing was measured.
    """
    rows = []
    for run in runs:
        about, numbers = results.runs.loc[run], results.numbers
        names = tasks_in(results.configs[run])
        sign = 1.0 if higher_is_better(about.score) else -1.0
        begun = int(numbers.phase[numbers.run == run].max()) + 1 if "phase" in numbers else 1
        for phase, name in enumerate(names[:begun]):
            xs, ys = _points(results, run, about.score, phase)
            _, own = _points(results, run, _key(about.score, name), phase)
            _, late = _points(results, run, _key(about.score, name), min(begun, len(names)) - 1)
            ends = own if len(own) else ys
            end, last = (sign * v[-1] if len(v) else math.nan for v in (ends, late))
            mean = sign * area_under_curve(xs, ys)
            rows.append((run, about.arm, about.seed, phase, name, mean, end, last))
    columns = ["run", "arm", "seed", "phase", "name", "mean", "end", "last"]
    return pd.DataFrame(rows, columns=columns)


def _key(score: str, task: str) -> str:
    """Return what the score of one task is called, as ``eval/<task>/return_mean``."""
    return score.replace("eval/", f"eval/{task}/", 1)


def _points(results: Results, run: int, key: str, phase: int) -> tuple[Any, Any]:
    rows = results.named(key, run).dropna(subset="value")
    rows = rows[rows.phase == phase] if "phase" in rows else rows
    return rows[results.runs.unit[run]].to_numpy(float), rows.value.to_numpy(float)


def task_curve(results: Results, run: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a task's score over the whole run, as (xs, ys): while it is trained, the run's."""
    about, names = results.runs.loc[run], tasks_in(results.configs[run])
    own = results.named(_key(about.score, task), run).dropna(subset="value")
    rest = results.named(about.score, run).dropna(subset="value")
    phases = rest.phase if "phase" in rest else pd.Series(0, rest.index)
    here = np.array([k < len(names) and names[k] == task for k in phases], dtype=bool)
    rest = rest[here & ~rest.line.isin(own.line).to_numpy()]
    rows = pd.concat([own, rest]).sort_values("line", kind="stable")
    return rows[about.unit].to_numpy(float), rows.value.to_numpy(float)


def trained(results: Results, run: int) -> dict[str, list[tuple[float, float]]]:
    """Return task → where it was trained, from and to, in the run's unit."""
    rows = results.numbers[results.numbers.run == run]
    ends = rows.groupby("phase")[results.runs.unit[run]].max() if "phase" in rows else {}
    found: dict[str, list[tuple[float, float]]] = {}
    start = 0.0
    for phase, task in enumerate(tasks_in(results.configs[run])[: len(ends)]):
        end = float(ends.get(phase, start))
        found.setdefault(task, []).append((start, end))
        start = end
    return found


def revisits(run: pd.DataFrame) -> float:
    """Return how much better later visits of a task are than its first, on average, or NaN."""
    first = run.groupby("name")["mean"].transform(lambda own: own.iloc[0])
    return float((run["mean"] - first)[run.duplicated("name")].mean())


def late_change(run: pd.DataFrame) -> float:
    """Return how much better the second half of the tasks is than the first task, on average.

    That is plasticity where tasks are equally hard by construction; NaN where a task comes again.
    """
    if run.name.duplicated().any() or len(run) < 2:
        return math.nan
    means = run["mean"].to_numpy()
    return float(pd.Series(means[(len(means) + 1) // 2 :] - means[0]).mean())


def plasticity_loss(run: pd.DataFrame, oracle: pd.DataFrame) -> float:
    """Return how much better a new agent ends its tasks, on average over later phases."""
    both = run.merge(oracle, on="phase", suffixes=("", "_oracle"))
    return float((both.end_oracle - both.end)[both.phase > 0].mean())


def forward_transfer(run: pd.DataFrame, oracle: pd.DataFrame, shares: bool) -> float:
    """Return how much better tasks are learned than by a new agent, over first visits but phase 0.

    Of scores that are `shares` each difference is a share of what the new agent lacks.
    """
    both = run[~run.duplicated("name")].merge(oracle, on="phase", suffixes=("", "_oracle"))
    both = both[both.phase > 0]
    difference = both["mean"] - both.mean_oracle
    if shares:
        left = 1 - both.mean_oracle
        difference = (difference / left.where(left > 0)).where(left > 0)
    return float(difference.mean())


def forgetting(run: pd.DataFrame) -> float:
    """Return how much of what a task had reached is lost at the end of the run, on average.

    The mean over tasks, but the one trained last, from the end of the last visit; NaN without
    others.
    """
    final = run.drop_duplicates("name", keep="last").set_index("name")
    return float((final.end - final["last"]).drop(run.name.iloc[-1]).mean())


def sequence(visits: pd.DataFrame, shares: bool) -> pd.DataFrame:
    """Return the numbers of each arm, estimated over its seeds, from all `visits`.

    The arm called ``oracle`` is what others are compared with, seed by seed; `shares` as of
    `forward_transfer`. Columns are ``arm``, ``seeds``, and `NUMBERS` with NAME_low and NAME_high.
    """
    oracle = dict(iter(visits[visits.arm == ORACLE].groupby("seed")))
    apart = (-1.0, 1.0) if shares else UNBOUNDED  # what differences of scores can be
    rows = []
    for arm, own in visits.groupby("arm", sort=False):
        runs = own.groupby(["run", "seed"], sort=False)
        news = {} if arm == ORACLE else oracle
        numbers = pd.DataFrame(_numbers(run, news.get(seed), shares) for (_, seed), run in runs)
        row: dict[str, Any] = {"arm": arm, "seeds": len(runs)}
        for name in NUMBERS:
            bounds = UNBOUNDED if name == "forward_transfer" else apart
            found = stratified_interval([numbers[name].dropna().to_numpy()], bounds)
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        rows.append(row)
    return pd.DataFrame(rows)


def _numbers(run: pd.DataFrame, oracle: pd.DataFrame | None, shares: bool) -> dict[str, float]:
    """Return `NUMBERS` of one run; two of them need the run of a new agent per task."""
    alone = oracle is None
    return {
        "revisits": revisits(run),
        "late_change": late_change(run),
        "plasticity_loss": math.nan if alone else plasticity_loss(run, oracle),
        "forward_transfer": math.nan if alone else forward_transfer(run, oracle, shares),
        "forgetting": forgetting(run),
    }
