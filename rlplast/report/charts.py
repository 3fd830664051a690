"""The charts of a report: a function each, from tables to rows of data that are drawn."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlplast.report import sequences
from rlplast.report.arms import Look, unused
from rlplast.report.estimators import align, curve_band
from rlplast.report.published import bands
from rlplast.report.statistics import ALL_TASKS
from rlplast.report.vega import Datum, Spec, lines, panels, points
from rlplast.report.view import Report, slug_of
from rlplast.report.words import better, intervals
from rlplast.training.best import higher_is_better

__all__ = [
    "Chart",
    "curves",
    "each_task",
    "metrics",
    "metrics_of",
    "ranking",
    "tasks_in_turn",
]

POINTS = 3000  # of all curves of a chart together, so that a page is quick
PANEL_POINTS = 40  # of a curve of a small chart
SEED_POINTS = 24_000  # of all seeds' curves of a page, so that it is small
AXES = ("env_steps", "updates", "seconds")  # over which curves may be drawn
MARKS = 40  # firings of an arm that have a mark, the first and the last among them


class Chart(NamedTuple):
    """A chart; the name is that of its files and unique in a page."""

    name: str
    title: str
    caption: str
    spec: Spec


# --- the charts ---


def curves(report: Report, task: str) -> Chart:
    """Return the chart of the score over a task's runs."""
    results, key, label = report.results, report.score(task), report.axis(task)
    most = max(12, SEED_POINTS // max(1, len(results.done) + len(results.going)))
    drawn: list[Datum] = []
    seeds: list[Datum] = []

    def single(look: Look, run: int) -> Datum:
        xs, ys = results.curve(run, key)
        line = _line(look, xs, ys, most=most)
        return line | {"seed": int(results.runs.seed[run])}

    for look, runs in report.ordered(results.of(task)):
        xs, ys = align([results.curve(run, key) for run in runs.index])
        if not len(xs):
            continue
        band = curve_band(ys, report.bounds(task, key))
        axes = _axes(report, list(runs.index), xs)
        few = max(20, POINTS // len(report.looks))
        drawn.append(_line(look, xs, *band, most=few, **axes))
        seeds += [single(look, run) for run in runs.index] if len(runs) > 1 else []
    going = [
        single(look, run) for look, runs in report.ordered(report.going(task)) for run in runs.index
    ]
    fired, theirs = _fired(report, task), bands(report, task)
    branches = report.branches(task)
    caption = (
        f"Interquartile mean over seeds at each point of {key} (straight lines between a run's "
        f"own). Band: {intervals(report.summary.of(task))}."
    )
    caption += " Thin dotted lines: runs that have not ended." * bool(going)
    caption += " Dashed line: where arms left a shared prefix." * bool(branches)
    caption += (
        f" Marks below: where scheduled hooks fired, in any seed; {MARKS} of those that fire more "
        "often."
    ) * bool(fired)
    published = [
        _line(report.look(arm), xs, mean, low, high) | {"words": words}
        for arm, words, xs, mean, low, high in theirs
    ]
    if theirs:
        whose = "; ".join(f"{arm}: {words}" for arm, words, *_ in theirs)
        caption += f" Thin bands with dotted edges: published mean ± 2 standard errors ({whose})."
    data = {"curves": drawn, "seeds": seeds, "running": going, "firings": fired}
    spec = lines(report.looks, data | {"bands": published}, (label, better(key)), branches)
    axes = [name for name in AXES if drawn and all(name in row for row in drawn)]
    spec["usermeta"] = {"x": label, "axes": axes}
    return Chart(f"curve-{report.slugs[task]}", "Learning curves", caption, spec)


def ranking(report: Report, task: str) -> Chart | None:
    """Return the chart of the final scores on a task, or over all, the best arm on top."""
    rows = report.groups.get(task)
    if rows is None or rows.final.isna().all():
        return None
    sign = 1 if task != ALL_TASKS and not higher_is_better(rows.score.iloc[0]) else -1
    rows = rows.iloc[np.argsort(sign * rows.final.to_numpy(), kind="stable")]
    label = rows.scale.iloc[0] if task == ALL_TASKS else better(rows.score.iloc[0])
    finals = dict(iter(report.results.of(task).dropna(subset="final").groupby("arm").final))
    numbers = [_point(row, finals.get(row["arm"], ())) for row in rows.to_dict("records")]
    own = rows[rows.arm == report.summary.baseline]
    reference = float(own.final.iloc[0]) if len(own) and len(rows) > 1 else None
    caption = f"Points: interquartile mean over seeds. Lines: {intervals(rows)}."
    caption += " Small dots: the seeds." * any(row["seeds"] for row in numbers)
    caption += f" Dashed line: {report.summary.baseline}." * (reference is not None)
    spec = points(report.looks, numbers, f"final score: {label}", reference)
    return Chart(f"score-{report.slugs[task]}", "Final score", caption, spec)


def metrics(report: Report) -> Iterator[Chart]:
    """Yield a chart of all plasticity metrics for each task and network, with its layers."""
    used: list[str] = []
    for task in report.tasks:
        label = report.axis(task)
        for network, names in metrics_of(report, task).items():
            found: dict[str, list[Datum]] = {}
            for metric, layers in names.items():
                rows = found.setdefault(metric, [])
                for layer in layers:
                    key = "/".join(filter(None, ("metric", metric, network, layer)))
                    for look, runs in report.ordered(report.results.of(task)):
                        xs, ys = align([report.results.curve(run, key) for run in runs.index])
                        if len(xs):
                            mean = np.nanmean(ys, axis=0)
                            line = _line(look, xs, mean, most=PANEL_POINTS)
                            rows.append(line | {"layer": layer})
            name = unused(f"metrics-{report.slugs[task]}-{slug_of(network)}", used)
            used.append(name)
            caption = "Mean over seeds; each panel has its own y axis."
            if any(len(layers) > 1 for layers in names.values()):
                caption += " Choose a layer below the panels."
            spec = panels(report.looks, found, label, report.branches(task))
            yield Chart(name, f"{task}, {network}", caption, spec)


def metrics_of(report: Report, task: str) -> dict[str, dict[str, list[str]]]:
    """Return network → metric → layers, "" for all of it; no sketches, no single tensors."""
    results = report.results
    rows = results.numbers[results.numbers.run.isin(results.of(task).index)]
    names = sorted(name for name in rows.name.unique() if name.startswith("metric/"))
    found: dict[str, dict[str, list[str]]] = {}
    for metric, network, *layer in (name.split("/", 3)[1:] for name in names):
        own = found.setdefault(network, {}).setdefault(metric, [])
        own.append(layer[0] if layer else "")
    for network, own in list(found.items()):
        tensors = {*own.get("weight_norm", ()), *own.get("weight_difference", ())} - {""}
        whole = {name: layers for name, layers in own.items() if "" in layers}
        found[network] = {} if len(tensors) == 1 else whole
    return {network: own for network, own in found.items() if own}


def tasks_in_turn(report: Report, task: str, visits: pd.DataFrame) -> Chart:
    """Return the chart of the mean score of each task of a sequence, in the order they came."""
    key, drawn = report.score(task), []
    sign = 1 if higher_is_better(key) else -1
    for look, own in report.ordered(visits):
        runs = [run for _, run in own.groupby("run")]
        xs, ys = align([(run.phase.to_numpy(float), sign * run["mean"].to_numpy()) for run in runs])
        if len(xs):
            drawn.append(_line(look, xs, *curve_band(ys, report.bounds(task, key))))
    caption = (
        f"Mean height of {key} while each task was trained, interquartile mean over seeds; "
        f"band: {intervals(report.summary.of(task))}. The other sections have the score of the "
        "task that is trained."
    )
    spec = lines(report.looks, {"curves": drawn}, ("phase: number of the task", better(key)))
    return Chart(f"sequence-{report.slugs[task]}", f"{task}, task after task", caption, spec)


def each_task(report: Report, task: str, names: Sequence[str]) -> Chart:
    """Return the chart of the score of each task of a sequence over the run, a panel per task."""
    results, found = report.results, {}
    for name in names:
        found[name] = []
        for look, runs in report.ordered(results.of(task)):
            xs, ys = align([sequences.task_curve(results, run, name) for run in runs.index])
            if len(xs):
                line = _line(look, xs, curve_band(ys)[0], most=100)
                found[name].append(line | {"layer": ""})
    caption = (
        f"{report.score(task)} of each task over the run, interquartile mean over seeds. Grey: "
        "where the task is trained. Lines between evaluations are straight."
    )
    shaded = sequences.trained(results, report.any_of(task))
    spec = panels(report.looks, found, report.axis(task), report.branches(task), shaded)
    return Chart(f"sequence-{report.slugs[task]}-tasks", f"{task}, each task", caption, spec)


# --- rows of data ---


def rounded(values: Iterable[float | None]) -> list[float | int | None]:
    """Return numbers of five digits, whole ones whole, None for what is not finite."""
    found: list[float | int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(None)
        elif value == round(value) and abs(value) < 1e15:
            found.append(int(value))
        else:
            found.append(float(f"{value:.5g}"))
    return found


def _line(
    look: Look,
    xs: np.ndarray,
    ys: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    most: int = 10**9,
    **axes: np.ndarray,
) -> Datum:
    """Return a curve as a row of data, with at most so many points, both ends kept."""
    kept = _kept(len(xs), most)
    row = {"arm": look.name, "x": rounded(xs[kept]), "y": rounded(ys[kept])}
    if low is not None and high is not None:
        row |= {"low": rounded(low[kept]), "high": rounded(high[kept])}
    return row | {name: rounded(values[kept]) for name, values in axes.items()}


def _kept(count: int, most: int) -> np.ndarray:
    """Return which of so many points are drawn: at most `most`, both ends among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, max(2, most)).round().astype(int))


def _axes(report: Report, runs: Sequence[int], xs: np.ndarray) -> dict[str, np.ndarray]:
    """Return other counters, and the seconds, of runs at points of their curves, in the mean."""
    results, found = report.results, {}
    about = results.runs.loc[runs[0]]
    for name in (own for own in AXES if own != about.unit):
        key, column = ("time/seconds", "value") if name == "seconds" else (about.score, name)
        rows = [results.named(key, run) for run in runs]
        if all(column in own and own[column].any() for own in rows):
            ys = [np.interp(xs, own[about.unit], own[column]) for own in rows]
            found[name] = np.mean(ys, axis=0)
    return found


def _fired(report: Report, task: str) -> list[Datum]:
    """Return where the scheduled hooks of each arm fired, and what."""
    results, found = report.results, []
    for look, runs in report.ordered(results.of(task)):
        causes: dict[float, dict[str, None]] = {}
        for run in runs.index:
            for row in results.scheduled(run):
                words = f"{row.get('method')} on {row.get('network')}"
                causes.setdefault(row["clock"][runs.unit[run]], {})[words] = None
        if not causes:
            continue
        xs = [sorted(causes)[place] for place in _kept(len(causes), MARKS)]
        what = [", ".join(causes[x]) for x in xs]
        x = rounded(xs)
        found.append({"arm": look.name, "row": len(found), "x": x, "what": what})
    return found


def _point(row: Mapping[str, Any], seeds: Sequence[float]) -> Datum:
    """Return the final score of an arm as a row of data."""
    value, low, high = rounded(row[name] for name in ("final", "final_low", "final_high"))
    own = rounded(seeds) if len(seeds) > 1 else []
    return {"arm": row["arm"], "value": value, "low": low, "high": high, "seeds": own}
