"""What a report says in numbers, as functions of tables.

An estimate has the columns ``value``, ``low``, ``high`` (ends of the 95% interval, NaN with fewer
than 5 seeds) and ``count``. Those over seeds are interquartile means (`rlplast.report.estimators`).
Runs whose ``final`` is NaN are in no estimate.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from rlplast.core.clock import UNITS
from rlplast.report.estimators import (
    UNBOUNDED,
    Comparison,
    Estimate,
    area_under_curve,
    compare_arms,
    holm,
    probability_of_improvement,
    stratified_interval,
    within,
)
from rlplast.report.frame import SCORE_OF_TASKS, Results
from rlplast.report.scores import RAW, Scale, bounds_of, reference_id, scale_of
from rlplast.run.tasks import tasks_of
from rlplast.training.best import higher_is_better

__all__ = [
    "ALL_TASKS",
    "Summary",
    "compare",
    "drop_and_recovery",
    "final",
    "firings",
    "improvement",
    "measure",
    "summarise",
]

ALL_TASKS = "all tasks"
_NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
Row = Mapping[str, Any]


# --- each run ---


def measure(results: Results) -> Results:
    """Return results whose runs have what they measured and cost, as columns.

    - ``final``: mean score in the last tenth of it, or the share that `evaluate.final` says, at
      least the last score; NaN if it has none, or if the last one was no finite number.
    - ``change``: that minus the mean score in the first tenth, where tasks are drawn alike; else
    NaN.
    - ``area``: mean height of its curve; ``area_after``: from where the first finished run
      of its task leaves the others.
    - ``firing``: x of its first scheduled firing after its branch; NaN without one.
    - ``seconds``, ``cpu_seconds``: prefix included; ``own_seconds``: after its branch; ``updates``.
    """
    table = results.runs.copy()
    table["firing"] = [_first_firing(results, run) for run in table.index]
    moments = table[["firing", "branch"]].min(axis=1)
    starts = moments[results.done.index].groupby(table.task).min()
    table["start"] = table.task.map(starts)
    rows = [_measured(results, run, table.start[run]) for run in table.index]
    columns = ("final", "change", "area", "area_after")
    table[list(columns)] = pd.DataFrame(rows, index=table.index, columns=columns, dtype=float)
    updates = results.numbers.groupby("run").updates.max()
    table["updates"] = updates.reindex(table.index, fill_value=0)
    for name in ("seconds", "cpu_seconds"):
        found = (results.curve(run, f"time/{name}")[1] for run in table.index)
        nothing = 0.0 if name == "seconds" else math.nan
        table[name] = [own[-1] if len(own) else nothing for own in found]
    table["own_seconds"] = table.seconds - table.seconds_before
    return replace(results, runs=table)


def _first_firing(results: Results, run: int) -> float:
    unit, branch = results.runs.unit[run], results.runs.branch[run]
    xs = (row["clock"][unit] for row in results.scheduled(run))
    return next((float(x) for x in xs if not x < branch), math.nan)


def _measured(results: Results, run: int, start: float) -> tuple[float, ...]:
    about = results.runs.loc[run]
    xs, ys = results.curve(run, about.score)
    late = about.total - xs < round(about.final_share * about.total, 6)  # 0.1 is not a tenth
    ends = ys[late] if late.any() else ys[-1:]
    values = results.named(about.score, run).value
    diverged = len(values) and math.isnan(values.iloc[-1])
    final = float(ends.mean()) if len(ends) and not diverged else math.nan
    early = ys[10 * xs <= about.total] if _drawn_alike(results.configs[run]) else ys[:0]
    change = final - float(early.mean()) if len(early) else math.nan
    after = area_under_curve(xs, ys, None if math.isnan(start) else start)
    return final, change, area_under_curve(xs, ys), after


def _drawn_alike(config: Row) -> bool:
    """Say whether a run's phases are tasks of one length."""
    stream = config.get("stream") or {}
    return stream.get("name") in SCORE_OF_TASKS and isinstance(stream.get("epochs"), int)


# --- each firing ---


def firings(results: Results) -> pd.DataFrame:
    """Return what each scheduled firing cost, where there is a score on either side of it.

    All firings between two scores count as one, at the moment of the first. One between the scores
    of two tasks is left out. Of a run that left a prefix it is those after that; if it has none, as
    a baseline, the branch itself counts, so that arms are compared at one place.

    Returns:
        Columns: ``run``, ``task``, ``arm``, ``seed``, ``methods`` (joined by ", "), ``at`` (in the
            run's unit), ``drop`` (how much worse the first score after it is than the last before),
            ``recovered_after`` (x from it to the first score that is at least as good; inf if not
            before the next firing), ``area`` (lost until then: score times x).
    """
    rows = []
    for number in results.done.index:
        about = results.runs.loc[number]
        points = results.named(about.score, number).dropna(subset="value")
        xs, ys = points[about.unit].to_numpy(float), points.value.to_numpy(float)
        names = tasks_of(results.configs[number])
        fired: dict[int, list[tuple[Row, str]]] = {}  # by the index of the first score after it
        moments = [
            (row["clock"], str(row["method"]))
            for row in results.scheduled(number)
            if not row["clock"][about.unit] < about.branch
        ]
        if not moments and not math.isnan(about.branch):
            moments = [(results.infos[number]["branched_from"]["clock"], "")]
        for clock, method in moments:
            fired.setdefault(_first_after(points, clock, about.score), []).append((clock, method))
        for after, until in pairwise([*sorted(fired), len(xs)]):
            at = float(fired[after][0][0][about.unit])
            end = float(fired[until][0][0][about.unit]) if until < len(xs) else None
            better = higher_is_better(about.score)
            cost = drop_and_recovery(xs[:until], ys[:until], at, after, better, end)
            phases = (
                points.phase.to_numpy()[max(after - 1, 0) : after + 1] if "phase" in points else ()
            )
            if cost is None or (len(names) > 1 and len(set(phases)) > 1):
                continue
            methods = ", ".join(dict.fromkeys(method for _, method in fired[after]))
            rows.append((number, about.task, about.arm, about.seed, methods, at, *cost))
    columns = ["run", "task", "arm", "seed", "methods", "at", "drop", "recovered_after", "area"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[5:], float))


def _first_after(points: pd.DataFrame, clock: Row, score: str) -> int:
    """Return the index of the first point of a score after a firing."""
    # Hooks fire before an evaluation at the same clock. Other scores (train/return) are of what
    # lies behind a point, which is then before. The last point of a phase has the firing's updates
    # but not its phase: before.
    counts = {unit: count for unit, count in clock.items() if unit in points and unit in UNITS}
    here = points[list(counts)].to_numpy()
    there = np.array(list(counts.values()))
    before = (here < there).any(axis=1)
    if not score.startswith("eval/"):
        before |= (here == there).all(axis=1)
    return int(before.sum())


def drop_and_recovery(
    xs: np.ndarray,
    ys: np.ndarray,
    moment: float,
    after: int,
    higher: bool,
    end: float | None = None,
) -> tuple[float, float, float] | None:
    """Return how much a score fell at a firing, after how long it was back, and the area lost.

    The area is between the last score before and the curve after, until it is back there or ends.
    From the firing, at `moment`, to the first score after it, number `after`, the curve is flat, as
    it is from the last score to the next firing, at `end`, if there is one. The time is 0 without a
    drop, inf if the score never was back. None without a score on either side.
    """
    if not 0 < after < len(xs):
        return None
    xs, below = np.append(moment, xs[after:]), (1 if higher else -1) * (ys[after - 1] - ys[after:])
    fall, back = float(below[0]), xs[1:][below <= 0]
    time = float(back[0] - moment) if len(back) else math.inf
    below = np.append(fall, below)
    if end is not None:
        xs, below = np.append(xs, end), np.append(below, below[-1])
    reached = np.flatnonzero(below <= 0)
    if len(reached) and reached[0]:
        i = int(reached[0])
        crossing = xs[i - 1] + (xs[i] - xs[i - 1]) * below[i - 1] / (below[i - 1] - below[i])
        xs, below = np.append(xs[:i], crossing), np.append(below[:i], 0.0)
    lost = 0.0 if fall <= 0 else float(np.trapezoid(below, xs))
    return fall, 0.0 if fall <= 0 else time, lost


# --- each task and arm ---


def final(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the final score of each task and arm: its interquartile mean over seeds.

    Args:
        runs: columns ``task``, ``arm``, ``seed``, ``final``, as `rlplast.runs` returns. Where they
            have a ``status``, runs that are not done are left out. Several runs of a seed, such as
            continuations, count as one, their mean. `compare` and `improvement` take them so too.

    Returns:
        Columns: ``task``, ``arm``, and those of an estimate.
    """
    rows = [
        (*key, *astuple(stratified_interval(_strata(own, "final"))))
        for key, own in _seeds(runs).groupby(["task", "arm"], sort=False)
    ]
    return pd.DataFrame(rows, columns=["task", "arm", *_PARTS])


def improvement(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return how likely a run of each arm ends better than one of the baseline, on each task.

    Args:
        runs: columns ``task``, ``arm``, ``score``, ``final``.
        baseline: an arm.

    Returns:
        Columns: ``task``, ``arm``, and those of an estimate.
    """
    rows = []
    for task, arm, *pair in _pairs(runs, baseline):
        sign = 1 if higher_is_better(runs.score[runs.task == task].iloc[0]) else -1
        ours, theirs = ([sign * finals for finals in _strata(own, "final")] for own in pair)
        rows.append((task, arm, *astuple(probability_of_improvement(ours, theirs))))
    return pd.DataFrame(rows, columns=["task", "arm", *_PARTS])


def compare(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return how far the final scores of each arm are from the baseline's, on each task.

    Args:
        runs: columns ``task``, ``arm``, ``seed``, ``final``.
        baseline: an arm.

    Returns:
        Columns: ``task``, ``arm``, those of an estimate of the difference, ``paired`` (whether it
        is by seed), ``p_value`` (NaN where there is no test) and ``p_holm``, corrected for all
        rows.
    """
    rows = []
    for task, arm, *pair in _pairs(runs, baseline):
        found = compare_arms(*map(_by_seed, pair))
        p_value = math.nan if found.p_value is None else found.p_value
        rows.append((task, arm, *astuple(found.difference), found.paired, p_value))
    table = pd.DataFrame(rows, columns=["task", "arm", *_PARTS, "paired", "p_value"])
    tested = table.p_value.dropna()
    return table.assign(p_holm=pd.Series(holm(list(tested)), tested.index, dtype=float))


_PARTS = ("value", "low", "high", "count")


def _seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return task, arm, seed and final score of what is done, a row per seed."""
    done = runs[runs.status == "done"] if "status" in runs else runs
    keys = ["task", "arm", "seed"]
    return done.dropna(subset="final").groupby(keys, sort=False, as_index=False).final.mean()


def _pairs(runs: pd.DataFrame, baseline: str) -> Iterator[tuple[Any, ...]]:
    """Yield task, arm, its final scores and the baseline's, a row per seed."""
    seeds = _seeds(runs)
    for (task, arm), own in seeds.groupby(["task", "arm"], sort=False):
        theirs = seeds[(seeds.task == task) & (seeds.arm == baseline)]
        if arm != baseline and len(theirs):
            yield task, arm, own, theirs


def _strata(runs: pd.DataFrame, column: str) -> list[np.ndarray]:
    """Return the numbers of each task, by its name, without those that are not known."""
    return [own.dropna().to_numpy(float) for _, own in runs.groupby("task")[column]]


def _by_seed(runs: pd.DataFrame) -> list[dict[int, float]]:
    """Return seed → final score of each task, by its name."""
    return [own.set_index("seed").final.to_dict() for _, own in runs.groupby("task")]


def _recovery(firings: pd.DataFrame) -> tuple[float, int, int]:
    times = firings.recovered_after
    median = statistics.median_high(times) if len(times) else math.inf
    return median if math.isfinite(median) else math.nan, int(np.isfinite(times).sum()), len(times)


# --- a report's summary ---


def _with_ends(*names: str) -> list[str]:
    return [f"{name}{end}" for name in names for end in ("", "_low", "_high")]


_COLUMNS = [
    *("task", "arm", "seeds", "diverged", "score", "unit", "scale"),
    *(*_with_ends("final", "change", "normalised"), "normalised_scale"),
    *_with_ends("auc", "auc_after", "improvement", "difference"),
    *("paired", "p_value", "p_holm", *_with_ends("drop", "lost_area")),
    *("recovery", "recovered", "intervened", "final_mean", "final_sd"),
    *("seconds", "own_seconds", "cpu_seconds", "updates"),
]


@dataclass(frozen=True)
class Summary:
    """The numbers of a report.

    Attributes:
        rows: per task, then arm; then per arm over all tasks. Columns: ``task`` (or "all tasks"),
            ``arm``, ``seeds`` (finished runs with a score), ``diverged`` (runs in no number),
            ``score``, ``unit`` ("" over tasks that have several), ``scale`` ("raw", or that of a
            row over all tasks), the estimates ``final``, ``change``, ``normalised`` (on the task's
            scale), ``auc``, ``auc_after``, ``improvement``, ``difference``, ``drop``,
            ``lost_area``, each with NAME_low and NAME_high; ``normalised_scale``; ``paired``;
            ``p_value`` and ``p_holm``, corrected for the number of verdicts; ``recovery`` with
            ``recovered`` and ``intervened`` (firings); ``final_mean`` and ``final_sd`` over runs;
            means of ``seconds``, ``own_seconds``, ``cpu_seconds`` and ``updates``. What is not
            known is NaN, or None in columns of words.
        baseline: what arms are compared with, if there is one.
        diverged: task and arm → seeds of runs that diverged.
        firings: what the function of that name returns, of runs with a score at their end.
        notes: what was left out, and why.
    """

    rows: pd.DataFrame
    baseline: str | None
    diverged: Mapping[tuple[str, str], tuple[int, ...]]
    firings: pd.DataFrame
    notes: tuple[str, ...]

    def of(self, task: str) -> pd.DataFrame:
        """Return the rows of a task, or those over all tasks."""
        return self.rows[self.rows.task == task]


# Columns of runs that are scores, and those that are differences of scores.
_SCORES, _LENGTHS = ["final", "auc", "auc_after"], ["change", "drop", "lost_area"]


@dataclass(frozen=True)
class _Group:
    """Runs with a score that rows are made of: on one task, or on all, on the scale they share."""

    name: str
    runs: pd.DataFrame
    firings: pd.DataFrame
    scale: Scale
    bounds: tuple[float, float]
    label: str = RAW.label


def summarise(results: Results) -> Summary:
    """Return the numbers of all arms, of results that were measured."""
    done = results.done
    silent = done[done.final.isna()]
    notes = [
        f"{run.task}, {run.arm}, seed {run.seed} has no score at its end: it is in no average"
        for run in silent.itertuples()
    ]
    baseline = results.baseline
    if baseline is not None and done[(done.arm == baseline) & done.final.notna()].empty:
        notes.append(f"no run of the baseline {baseline} has a score: nothing is compared with it")
        baseline = None
    diverged: dict[tuple[str, str], set[int]] = {}
    lost = [own for own in results.runs.index if results.infos[own].get("diverged")]
    for run in results.runs.loc[sorted({*lost, *silent.index})].itertuples():
        diverged.setdefault((run.task, run.arm), set()).add(int(run.seed))
    fired = firings(results)
    fired = fired[~fired.run.isin(silent.index)]
    means = fired.groupby("run")[["drop", "area"]].mean().rename(columns={"area": "lost_area"})
    runs = done.rename(columns={"area": "auc", "area_after": "auc_after"}).join(means)
    groups = [
        _of_task(results, runs, fired, task) for task in results.tasks if task in {*done.task}
    ]
    pooled = [_pooled(groups, results.arms, baseline, notes)] if len(groups) > 1 else []
    rows = [
        _row(group, arm, baseline)
        for group in [*groups, *pooled]
        for arm in results.arms
        if arm in set(group.runs.arm) and (group.label or arm != baseline)
    ]
    counts = {key: len(seeds) for key, seeds in diverged.items()}
    for row in rows:
        tasks = {*done.task} if row["task"] == ALL_TASKS else [row["task"]]
        row["diverged"] = sum(counts.get((task, row["arm"]), 0) for task in tasks)
    table = _corrected(pd.DataFrame(rows, columns=_COLUMNS))
    seeds = {key: tuple(sorted(own)) for key, own in diverged.items()}
    return Summary(table, baseline, seeds, fired, tuple(notes))


def _of_task(results: Results, runs: pd.DataFrame, fired: pd.DataFrame, task: str) -> _Group:
    own = runs[runs.task == task]
    key = own.score.iloc[0]
    ids = {reference_id(results.configs[run]) for run in own.index}
    scales, bounds = {scale_of(name, key) for name in ids}, {bounds_of(name, key) for name in ids}
    scale = scales.pop() if len(scales) == 1 else RAW
    own = own.dropna(subset="final")
    own = own.assign(
        better=own.final if higher_is_better(key) else -own.final,
        normalised=math.nan if scale == RAW else scale.of(own.final),
    )
    limits = bounds.pop() if len(bounds) == 1 else UNBOUNDED
    return _Group(task, own, fired[fired.task == task], scale, limits)


def _pooled(
    groups: Sequence[_Group], arms: Sequence[str], baseline: str | None, notes: list[str]
) -> _Group:
    """Return the runs of arms that have some on each task; say what is left out."""
    labels = {group.name: group.scale.label for group in groups}
    shared = len(set(labels.values())) == 1 and RAW.label not in labels.values()
    if not shared:
        words = ", ".join(f"{name}: {label}" for name, label in labels.items())
        notes.append(
            f"scores are not averaged over tasks, since these share no scale ({words}); all "
            "tasks together only show how likely an arm beats the baseline on them"
        )
    whole = [arm for arm in arms if all(arm in set(group.runs.arm) for group in groups)]
    if len(whole) < len(arms):
        others = ", ".join(arm for arm in arms if arm not in whole)
        notes.append(f"not in the rows over all tasks, for want of a score on some: {others}")
    parts, ends = [], []
    for group in groups:
        own, scale = group.runs, group.scale
        of = {name: scale.of(own[name]) for name in _SCORES}
        of |= {name: scale.length(own[name]) for name in _LENGTHS}
        parts.append(own.assign(**of, normalised=of["final"]))
        ends += [scale.of(end) for end in group.bounds]
    runs = pd.concat(parts)
    if not shared:
        runs[[*_SCORES, *_LENGTHS, "normalised"]] = math.nan
        whole = [] if baseline is None else whole
    runs, fired = runs[runs.arm.isin(whole)], pd.concat([group.firings for group in groups])
    scale = Scale(groups[0].scale.label) if shared else RAW
    return _Group(
        ALL_TASKS, runs, fired, scale, (min(ends), max(ends)), scale.label if shared else ""
    )


def _corrected(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their p-values corrected."""
    # All rows that get a verdict are one family: those over all tasks, and of arms that have none
    # the rows of the tasks. The other rows of tasks, which detail a verdict, are another one.
    pooled, tested = table.task == ALL_TASKS, table.p_value.notna()
    detail = ~pooled & table.arm.isin(table.arm[pooled & tested])
    for family in (tested & ~detail, tested & detail):
        table.loc[family, "p_holm"] = holm(list(table.p_value[family]))
    return table


def _row(group: _Group, arm: str, baseline: str | None) -> dict[str, Any]:
    """Return an arm's row."""
    runs, theirs = (group.runs[group.runs.arm == own] for own in (arm, baseline))
    fired = group.firings[group.firings.arm == arm]
    units, scores = runs.unit.unique(), runs.score.unique()
    low, high = group.bounds
    apart = low - high, high - low  # what differences can be
    bounds = dict.fromkeys(_SCORES, group.bounds) | dict.fromkeys(_LENGTHS, apart)
    ends = [group.scale.of(end) for end in group.bounds]
    bounds |= {"normalised": (min(ends), max(ends)), "lost_area": (0, math.inf)}
    estimates = {
        name: stratified_interval(_strata(runs, name), own) for name, own in bounds.items()
    }
    if len(units) > 1:
        estimates["lost_area"] = _NOTHING
    compared = Comparison(_NOTHING, None, True)
    against = arm != baseline and set(theirs.task) == set(runs.task)
    if against:
        chance = probability_of_improvement(_strata(runs, "better"), _strata(theirs, "better"))
        estimates["improvement"] = chance if chance.low == chance.low else _NOTHING
    if against and group.label:
        compared = compare_arms(_by_seed(runs), _by_seed(theirs))
        difference = within(compared.difference, apart)
        estimates["difference"] = difference if difference.low == difference.low else _NOTHING
    median, recovered, intervened = _recovery(fired)
    single = group.name != ALL_TASKS
    return {
        "task": group.name,
        "arm": arm,
        "seeds": len(runs),
        "score": scores[0] if len(scores) == 1 else "",
        "unit": units[0] if len(units) == 1 else "",
        "scale": group.label,
        "normalised_scale": "" if group.scale == RAW else group.scale.label,
        "paired": compared.paired if against else None,
        "p_value": math.nan if compared.p_value is None else compared.p_value,
        "p_holm": math.nan,
        "recovery": median if len(units) == 1 else math.nan,
        "recovered": recovered,
        "intervened": intervened,
        "final_mean": runs.final.mean() if single else math.nan,
        "final_sd": runs.final.std() if single else math.nan,
        **{name: runs[name].mean() for name in ("seconds", "own_seconds", "cpu_seconds")},
        "updates": float(runs.updates.mean()),
        **{
            column: number
            for name, own in estimates.items()
            for column, number in zip(_with_ends(name), astuple(own), strict=False)
        },
    }
