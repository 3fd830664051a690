"""The charts of a report: a function each, from tables to a Vega-Lite chart made by Altair.

One specification is drawn in the page and into the files. The page sets its parameters: `shown`
(the labels of the arms to show), `focus` (the arm that is pointed at), `seeds` (whether each seed
has its line), `hover` (whether points answer to the pointer).
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from rlplast.report import sequences
from rlplast.report.arms import Look, unused
from rlplast.report.estimators import align, curve_band
from rlplast.report.published import bands
from rlplast.report.statistics import ALL_TASKS
from rlplast.report.view import Report, slug_of
from rlplast.report.words import better, intervals
from rlplast.training.best import higher_is_better

__all__ = [
    "CONFIG",
    "VERSION",
    "Chart",
    "curves",
    "each_task",
    "lines",
    "metrics",
    "metrics_of",
    "panels",
    "points",
    "ranking",
    "tasks_in_turn",
]

Spec = dict[str, Any]
Datum = dict[str, Any]
VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])  # of Vega-Lite
INK = "currentColor"  # that of the page's text; black in files
CONFIG: Spec = {
    "background": "transparent",
    "padding": {"left": 4, "top": 4, "right": 14, "bottom": 4},  # room for the last label
    "font": "DejaVu Sans, Verdana, sans-serif",
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "tickColor", "domainColor", "gridColor"), INK),
        **{"gridOpacity": 0.12, "titleFontWeight": "normal", "labelLimit": 210},
        **{"labelFontSize": 12, "titleFontSize": 12},
    },
    "legend": {"labelColor": INK, "titleColor": INK},
    "title": {"color": INK, "anchor": "start", "fontWeight": "normal", "fontSize": 13},
    "view": {"stroke": None},
}
SHOWN = "indexof(shown, datum.arm) >= 0"  # a filter: what belongs to an arm that is shown
WHOLE = "whole network"  # what the choice of layers says for the layer ""
POINTS = 3000  # of all curves of a chart together, so that a page is quick
PANEL_POINTS = 40  # of a curve of a small chart
SEED_POINTS = 24_000  # of all seeds' curves of a page, so that it is small
AXES = ("env_steps", "updates", "seconds")  # over which curves may be drawn
MARKS = 40  # firings of an arm that have a mark, the first and the last among them
ROW, STRIP = 7, 84  # pixels between the marks of firings of two arms, and of all at most


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
    numbers = [_point(row, "final", finals.get(row["arm"], ())) for row in rows.to_dict("records")]
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


def _point(row: Mapping[str, Any], name: str, seeds: Sequence[float] = ()) -> Datum:
    """Return an estimate of an arm as a row of data."""
    ends = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
    found = dict(zip(("value", "low", "high"), rounded(ends), strict=True))
    own = rounded(seeds) if len(seeds) > 1 else []
    return {"arm": row["arm"], **found, "seeds": own}


# --- what charts are made of ---


class Arms:
    """How charts show arms: the channels of their colour and dashes."""

    def __init__(self, looks: Sequence[Look]) -> None:
        def scale(values: list[Any]) -> alt.Scale:
            return alt.Scale(domain=[look.name for look in looks], range=values)

        colours, legend = scale([look.colour for look in looks]), _legend(looks)
        self.colour = alt.Color("arm:N", scale=colours, legend=legend)
        self.alone = alt.Color("arm:N", scale=colours, legend=None)
        dashes = scale([list(look.dash) for look in looks])
        self.dash = alt.StrokeDash("arm:N", scale=dashes, legend=legend)
        self.pale = round(0.14 * min(1.0, 8 / max(1, len(looks))), 3)  # of many: lines are seen


def lines(
    looks: Sequence[Look],
    data: Mapping[str, list[Datum]],
    labels: tuple[str, str],
    across: Sequence[float] = (),
) -> Spec:
    """Return a chart of a curve per arm.

    Args:
        looks: of all arms of the report.
        data: ``curves``; ``seeds`` and ``running``, thin lines of single runs; ``bands``, dotted,
            behind everything; ``firings``, marks below.
        labels: of the axes x and y.
        across: where a dashed line is drawn.
    """
    arms, fired = Arms(looks), data.get("firings") or []
    row = min(ROW, STRIP / max(1, len(fired)))
    strip = 4 + round(row * len(fired)) if fired else 0
    x = alt.X("x:Q", title=labels[0], axis=_steps(7))
    scale = alt.Scale(zero=False, nice=True, range=[alt.expr(f"height - {strip}"), 0])
    y = alt.Y("y:Q", title=labels[1], scale=scale, axis=_values())
    layers = _band_layers(arms, x, y) if data.get("bands") else []
    layers += _curve_layers(arms, x, y, _reached(data))
    for name, width, dash in (("seeds", 0.8, [1, 0]), ("running", 1.5, [2, 2])):
        if data.get(name):
            shown = f"seeds && {SHOWN}" if name == "seeds" else SHOWN
            thin = _named(name, shown, "x", "y").mark_line(
                clip=True, strokeWidth=width, strokeDash=dash
            )
            shared = {"x": x, "y": y, "color": arms.colour, "opacity": _faint(0.6, 0.08)}
            layers.append(thin.encode(**shared, detail="seed:N"))
    if fired:
        place = alt.expr(f"height - 5 - {row:g} * datum.row")
        tips = ["arm:N", alt.Tooltip("what:N", title="fired"), _tip("x", labels[0])]
        shared = {"x": x, "color": arms.colour, "opacity": _faint(1, 0.15), "tooltip": tips}
        marks = _named("firings", SHOWN, "x", "what")
        layers.append(marks.mark_point(filled=True, size=36, clip=True, y=place).encode(**shared))
    chart = _layered(layers, x, across).properties(width=660, height=300 + strip)
    if data.get("bands"):  # so that a picture alone says what its bands are
        words = [f"{own['arm']}, dotted: published by {own['words']}" for own in data["bands"]]
        title = alt.Title(words, orient="bottom", anchor="start", frame="group", fontSize=10)
        chart = chart.properties(title=title)
    return finished(chart, looks, data)


def panels(
    looks: Sequence[Look],
    found: Mapping[str, list[Datum]],
    label: str,
    across: Sequence[float] = (),
    shaded: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Spec:
    """Return small charts of curves, each with its own y axis, all over one x axis called `label`.

    `found` has title → its curves, of which each says its layer; `shaded` title → where the panel's
    background is grey, from and to; `across` where a dashed line is drawn.
    """
    arms, layers = Arms(looks), {row["layer"] for rows in found.values() for row in rows}
    x = alt.X("x:Q", title=label, axis=_steps(4))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False), axis=_values())
    drawn, data = [], []
    for number, (title, rows) in enumerate(found.items()):
        data += [row | {"panel": number} for row in rows]
        # a metric that no layer has is shown whatever layer is chosen
        chosen = "datum.layer == layer" if {row["layer"] for row in rows} - {""} else "true"
        only = f"datum.panel == {number} && {chosen}"
        own = _curve_layers(arms, x, y, None, only, f"zoom_{number}")
        for start, stop in (shaded or {}).get(title, ()):
            area = alt.Chart(alt.InlineData([{"x": start, "x2": stop}]))
            own.insert(0, area.mark_rect(color=INK, opacity=0.08).encode(x=x, x2="x2:Q"))
        chart = _layered(own, x, across)
        drawn.append(chart.properties(width=250, height=120, title=title))
    spec = finished(alt.concat(*drawn, columns=3, spacing=24), looks, {"curves": data})
    if layers := sorted(layers - {""}):
        choice = {"input": "select", "options": ["", *layers], "labels": [WHOLE, *layers]}
        spec["params"].append({"name": "layer", "value": "", "bind": choice | {"name": "layer "}})
    return spec


def points(
    looks: Sequence[Look],
    rows: list[Datum],
    label: str,
    reference: float | None = None,
) -> Spec:
    """Return a chart with a row per arm: a point with its interval, and dots for seeds.

    A line across all arms is drawn at `reference`.
    """
    arms, names = Arms(looks), [row["arm"] for row in rows]
    y = alt.Y("arm:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False))
    scale = alt.Scale(zero=False, padding=8)  # no point covers a label

    def encoded(mark: alt.Chart, field: str, full: float, tips: list[Any], **more: Any) -> Any:
        x = alt.X(f"{field}:Q", title=label, scale=scale, axis=alt.Axis(tickCount=4))
        own = {"x": x, "y": y, "color": arms.alone, "opacity": _faint(full, 0.2), "tooltip": tips}
        return mark.encode(**own, **more)

    base = _named("points", SHOWN)
    tips = ["arm:N", _tip("value", "value"), _tip("low", "interval from"), _tip("high", "to")]
    seeds = base.transform_flatten(["seeds"]).mark_circle(size=22, yOffset=6)
    rules = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.4)
    layers = [
        encoded(seeds, "seeds", 0.5, ["arm:N", _tip("seeds", "one seed")]),
        encoded(rules, "low", 1, tips, x2="high:Q"),
        encoded(base.mark_point(filled=True, size=55), "value", 1, tips),
    ]
    if reference is not None:
        line = alt.Chart(alt.InlineData([{"x": reference}]))
        layers.append(line.mark_rule(strokeDash=[4, 3], color=INK, opacity=0.7).encode(x="x:Q"))
    height = len(names) * max(15, min(44, 330 // len(names)))
    return finished(
        alt.layer(*layers).properties(width=560, height=height), looks, {"points": rows}
    )


def _reached(data: Mapping[str, list[Datum]]) -> tuple[float, float] | None:
    """Return the lowest and highest value of any seed and band; None without a seed."""
    found = [row["y"] for row in data.get("seeds") or ()]
    if not found:
        return None
    found += [row[side] for row in data.get("bands") or () for side in ("low", "high")]
    values = [value for own in found for value in own if value is not None]
    return (min(values), max(values)) if values and min(values) < max(values) else None


def _curve_layers(
    arms: Arms,
    x: alt.X,
    y: alt.Y,
    reached: tuple[float, float] | None,
    only: str = "true",
    zoom: str = "zoom",
) -> list[alt.Chart]:
    """Return intervals, lines and points of curves; Ctrl + wheel and a drag move the x axis."""
    within = "clamp(datum.{}, {:.6g}, {:.6g})" if reached else "datum.{}"
    low, high = (within.format(field, *(reached or ())) for field in ("low", "high"))
    rows = _named("curves", f"{SHOWN} && {only}")
    ended = rows.transform_calculate(low="datum.low || []", high="datum.high || []")
    flat = ended.transform_flatten(["x", "y", "low", "high"])  # of lists alone
    single = rows.transform_filter("length(datum.x) == 1").transform_flatten(["x", "y"])
    area = flat.transform_filter("isValid(datum.low)").transform_calculate(bottom=low, top=high)
    held = "[event.ctrlKey || event.metaKey]"  # the wheel alone scrolls the page
    seen = alt.selection_interval(name=zoom, bind="scales", encodings=["x"], zoom=f"wheel!{held}")
    where = {"on": "pointerover", "clear": "pointerout", "fields": ["arm", "x"], "empty": False}
    near = alt.selection_point(name=f"near_{zoom}", nearest=True, **where)
    label = y["title"] if isinstance(y["title"], str) else "value"
    tips = _nearest({"x": x["title"], "y": label, "low": "interval from", "high": "to"})
    own: Spec = {"x": x, "y": y, "color": arms.colour}
    solid, pale = own | {"opacity": _faint(1, 0.12)}, own | {"opacity": _faint(arms.pale, 0.03)}
    hidden = alt.condition(near, alt.value(1), alt.value(0))
    hovered = flat.transform_filter("hover").mark_point(clip=True, filled=True, size=50)
    return [
        area.mark_area(clip=True).encode(**pale | {"y": _field(y, "bottom"), "y2": "top:Q"}),
        flat.mark_line(clip=True, strokeWidth=1.8).encode(**solid, strokeDash=arms.dash),
        single.mark_point(clip=True, filled=True, size=40).encode(**solid),  # no line is seen
        # both on one: in two layers Vega makes each twice
        hovered.encode(**own, tooltip=tips, opacity=hidden).add_params(seen, near),
    ]


def _band_layers(arms: Arms, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Return bands in their arms' colours, paler than an interval and with dotted edges."""
    data = _named("bands", SHOWN, "x", "y", "low", "high")
    ends = {"y": "mean", "low": "from", "high": "to"}
    tips = [alt.Tooltip("words:N", title="published"), *(_tip(*own) for own in ends.items())]
    low, high = (_field(y, side) for side in ("low", "high"))
    own: Spec = {"x": x, "color": arms.colour}
    edge = data.mark_line(clip=True, strokeWidth=1, strokeDash=[1, 2])
    edges = [edge.encode(**own, y=s, opacity=_faint(0.8, 0.1), detail="arm:N") for s in (low, high)]
    pale = own | {"opacity": _faint(0.07, 0.02), "tooltip": ["arm:N", *tips]}
    return [data.mark_area(clip=True).encode(**pale, y=low, y2="high:Q"), *edges]


def _field(channel: alt.Y, name: str) -> alt.Y:
    """Return a channel with another field."""
    other = channel.copy()
    other["shorthand"] = f"{name}:Q"
    return other


def _layered(layers: Sequence[alt.Chart], x: alt.X, across: Sequence[float]) -> alt.LayerChart:
    """Return layers as one chart, with dashed lines where arms left a shared prefix."""
    rules = []
    if across:
        lines = alt.Chart(alt.InlineData([{"x": x} for x in across]))
        rule = lines.mark_rule(clip=True, strokeDash=[4, 3], color=INK, opacity=0.7)
        rules = [rule.encode(x=x)]
    return alt.layer(*layers, *rules)


def _steps(ticks: int) -> alt.Axis:
    """Return an axis of whole steps: 3, 30k, 1.5M."""
    # Of a domain of one step Vega has a tick in the middle all the same.
    label = "datum.value % 1 ? '' : format(datum.value, '~s')"
    return alt.Axis(tickCount=ticks, tickMinStep=1, labelExpr=label)


def _values() -> alt.Axis:
    """Return an axis of measured values: 0.25, 30k, 1.5M, 5.6e+11."""
    # Vega's own labels of a constant are wrong: it gives a domain without length no digits
    size = "abs(datum.value)"
    kind = f"{size} < 1e4 ? '.4~g' : {size} < 1e9 ? '~s' : '.3~e'"
    return alt.Axis(labelExpr=f"format(datum.value, {kind})")


def _named(name: str, shown: str, *flat: str) -> alt.Chart:
    """Return a chart of the data set of that name, which `finished` brings."""
    rows = alt.Chart(alt.NamedData(name)).transform_filter(shown)
    return rows.transform_flatten(list(flat)) if flat else rows


def _legend(looks: Sequence[Look]) -> alt.Legend | None:
    if len(looks) < 2:
        return None
    longest = min(26, max(len(look.name) for look in looks))
    columns = max(1, min(len(looks), 660 // (40 + 7 * longest)))
    symbols = {"symbolType": "stroke", "symbolLimit": 0, "symbolOpacity": 1}
    return alt.Legend(
        title=None, orient="bottom", columns=columns, labelLimit=180, symbolStrokeWidth=2, **symbols
    )


def _faint(full: float, faint: float) -> Any:
    """Return an opacity: `faint` while another arm is pointed at."""
    return alt.value(alt.expr(f"focus == null || focus == datum.arm ? {full} : {faint}"))


def _tip(field: str, title: str) -> alt.Tooltip:
    """Return a number that the thing under the pointer says, with its title."""
    # A title is never a user's: Vega-Lite 6.4 puts it into an expression and lets quotes end it.
    return alt.Tooltip(f"{field}:Q", title=title, format=",.4~g")


def _nearest(fields: Mapping[str, str]) -> Any:
    """Return what the point nearest to the mouse says: its arm, and field → title of numbers."""
    # Vega-Lite 6.4 looks up its own list of fields in the cell around the point.
    own, form = "(datum.datum || datum)", "format({}.{}, ',.4~g')"
    numbers = [f"{json.dumps(title)}: {form.format(own, key)}" for key, title in fields.items()]
    return alt.value(alt.expr(f"{{'arm': {own}.arm, {', '.join(numbers)}}}"))


def finished(chart: Any, looks: Sequence[Look], data: Mapping[str, Any]) -> Spec:
    """Return a chart as a specification, with its data and the parameters that a page sets."""
    spec = chart.to_dict()
    spec.pop("config", None)  # the same for all charts of a page
    spec.setdefault("datasets", {}).update(data)
    own = {"shown": [look.name for look in looks], "seeds": False, "hover": False, "focus": None}
    params = [{"name": name, "value": value} for name, value in own.items()]
    spec["params"] = params + spec.get("params", [])
    return spec
