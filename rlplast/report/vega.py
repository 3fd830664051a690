"""Charts of rows of data, as Vega-Lite specifications made by Altair.

One specification is drawn in the page and into the files. The page sets its parameters: `shown`
(the labels of the arms to show), `focus` (the arm that is pointed at), `seeds` (whether each seed
has its line), `hover` (whether points answer to the pointer).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from rlplast.report.arms import Look

__all__ = ["CONFIG", "INK", "VERSION", "WHOLE", "Datum", "Spec", "lines", "panels", "points"]

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
ROW, STRIP = 7, 84  # pixels between the marks of firings of two arms, and of all at most


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
