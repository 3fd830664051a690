"""Charts of several arms, as Vega-Lite specifications made by Altair.

- `curves`: an arm a line, with its interval, its seeds, and where its methods fired.
- `panels`: small charts of curves side by side, with a choice of layers.
- `rows`: a row per arm, points with intervals and dots for seeds, or bars.

One specification is drawn in the page and into the files. The page sets its parameters:

- `shown`: the labels of the arms to show. Others are filtered out, so the axes fit what is left.
- `focus`: the arm that is pointed at.
- `seeds`: whether each seed has its line.
- `hover`: whether points answer to the pointer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt
import numpy as np

from rlplast.report.looks import Look
from rlplast.report.vega import (
    INK,
    SHOWN,
    Spec,
    colour_of,
    dash_of,
    finished,
    named,
    nearest_tips,
    opacity,
    rounded,
    shape_of,
    step_axis,
    tip,
    value_axis,
)

__all__ = [
    "Bar",
    "Curve",
    "Firing",
    "Panel",
    "Point",
    "curves",
    "panels",
    "rows",
]

Axis = Literal["free", "share", "zero"]
WHOLE = "whole network"  # what the choice of layers says for the layer ""
_ROW = 7  # pixels between the marks of firings of two arms


@dataclass(frozen=True)
class Curve:
    """A curve; `low` and `high` are not-a-number where there is no interval. Arrays of (n,)."""

    xs: np.ndarray
    ys: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class Firing:
    """Where a method fired, and what it did, in words."""

    x: float
    words: str


@dataclass(frozen=True)
class Point:
    """One arm's number: interval (None without one), and the values of its seeds."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bar:
    """One arm's cost: its own part and the part it shares with other arms."""

    own: float
    shared: float


@dataclass(frozen=True)
class Panel:
    """Numbers of arms on one axis.

    Attributes:
        title: above the panel.
        xlabel: of the axis of numbers.
        numbers: index of an arm → its number; all points or all bars.
        reference: where a line across all arms is drawn.
        axis: share: the axis is from 0 to 1; zero: it begins at 0.
    """

    title: str
    xlabel: str
    numbers: Mapping[int, Point] | Mapping[int, Bar]
    reference: float | None = None
    axis: Axis = "free"


def curves(
    arms: Sequence[Look],
    drawn: Mapping[int, Curve],
    seeds: Mapping[int, Mapping[int, Curve]],
    labels: tuple[str, str],
    branches: Sequence[float],
    firings: Mapping[int, Sequence[Firing]],
) -> Spec:
    """Return a chart of a curve per arm.

    Args:
        arms: all arms of the report.
        drawn: index of an arm → its curve.
        seeds: index of an arm → seed → its curve.
        labels: of the axes x and y.
        branches: where arms left a shared prefix.
        firings: index of an arm → where its scheduled hooks fired.
    """
    fired = [look for look in arms if firings.get(look.index)]
    strip = 4 + _ROW * len(fired) if fired else 0
    x = alt.X("x:Q", title=labels[0], axis=step_axis(7))
    scale = alt.Scale(zero=False, nice=True, range=[alt.expr(f"height - {strip}"), 0])
    layers = _curve_layers(arms, x, scale, labels[1], seeded=any(seeds.values()))
    if fired:
        marks = named("firings").transform_filter(SHOWN).transform_flatten(["x", "what"])
        layers.append(
            marks.mark_point(
                filled=True, size=36, clip=True, y=alt.expr(f"height - 5 - {_ROW} * datum.row")
            ).encode(
                x=x,
                color=colour_of(arms),
                shape=shape_of(arms),
                opacity=opacity(1, 0.15),
                tooltip=["arm:N", alt.Tooltip("what:N", title="fired"), tip("x", labels[0])],
            )
        )
    layers += _lines_across(x, branches)
    chart = alt.layer(*layers).properties(width=660, height=300 + strip)
    data = {
        "curves": [_curve_row(arms[index], curve) for index, curve in drawn.items()],
        "seeds": [
            _curve_row(arms[index], curve) | {"seed": seed}
            for index, own in seeds.items()
            for seed, curve in own.items()
        ],
        "firings": [
            {
                "arm": look.label,
                "row": row,
                "x": rounded([f.x for f in firings[look.index]]),
                "what": [f.words for f in firings[look.index]],
            }
            for row, look in enumerate(fired)
        ],
    }
    return finished(chart, arms, data)


def panels(
    arms: Sequence[Look],
    found: Mapping[str, Mapping[str, Mapping[int, Curve]]],
    xlabel: str,
    branches: Sequence[float],
    shaded: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Spec:
    """Return small charts of curves, each with its own y axis, all over one x axis.

    Args:
        arms: all arms of the report.
        found: title → layer of a network, "" for all of it → index of an arm → its curve.
        xlabel: of the common axis.
        branches: where arms left a shared prefix.
        shaded: title → where the panel's background is grey, from and to.
    """
    layers = sorted({layer for own in found.values() for layer in own if layer})
    x = alt.X("x:Q", title=xlabel, axis=step_axis(4))
    charts = []
    for number, (title, own) in enumerate(found.items()):
        # a metric that no layer has is shown whatever layer is chosen
        chosen = "datum.layer == layer" if set(own) - {""} else "true"
        only = f"datum.panel == {number} && {chosen}"
        drawn = _curve_layers(arms, x, alt.Scale(zero=False), "", only, f"zoom_{number}")
        for start, stop in (shaded or {}).get(title, ()):
            area = alt.Chart(alt.InlineData([{"x": start, "x2": stop}]))
            drawn.insert(0, area.mark_rect(color=INK, opacity=0.08).encode(x=x, x2="x2:Q"))
        drawn += _lines_across(x, branches)
        charts.append(alt.layer(*drawn).properties(width=250, height=120, title=title))
    data = {
        "curves": [
            _curve_row(arms[index], curve) | {"panel": number, "layer": layer}
            for number, own in enumerate(found.values())
            for layer, by_arm in own.items()
            for index, curve in by_arm.items()
        ]
    }
    spec = finished(_side_by_side(charts), arms, data)
    if layers:
        choice = {"input": "select", "options": ["", *layers], "labels": [WHOLE, *layers]}
        spec["params"].append({"name": "layer", "value": "", "bind": choice | {"name": "layer "}})
    return spec


def rows(arms: Sequence[Look], found: Sequence[Panel]) -> Spec:
    """Return charts with a row per arm: a point with interval and dots for seeds, or a bar.

    Args:
        arms: all arms of the report; those without a number in any panel have no row.
        found: what to draw, all with the same rows.
    """
    names = [look.label for look in arms if any(look.index in panel.numbers for panel in found)]
    data, charts = {}, []
    for number, panel in enumerate(found):
        source = f"panel_{number}"
        data[source] = [_number_row(arms[i], own) for i, own in panel.numbers.items()]
        y = alt.Y("arm:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False))
        bars = any(isinstance(own, Bar) for own in panel.numbers.values())
        drawn = _bar_layers(arms, source, panel, y) if bars else _points(arms, source, panel, y)
        if panel.reference is not None:
            across = alt.Chart(alt.InlineData([{"x": panel.reference}]))
            drawn.append(across.mark_rule(strokeDash=[4, 3], color=INK).encode(x="x:Q"))
        charts.append(
            alt.layer(*drawn).properties(width=230, height=alt.Step(22), title=panel.title)
        )
    return finished(_side_by_side(charts), arms, data)


def _curve_layers(
    arms: Sequence[Look],
    x: alt.X,
    scale: alt.Scale,
    ylabel: str,
    only: str = "true",
    zoom: str = "zoom",
    seeded: bool = False,
) -> list[alt.Chart]:
    """Return intervals, lines and points of curves; Ctrl + wheel and a drag move the x axis."""
    colour, dash = colour_of(arms), dash_of(arms)
    y, low = (
        alt.Y(f"{field}:Q", title=ylabel or None, scale=scale, axis=value_axis())
        for field in ("y", "low")
    )
    lines = (
        named("curves")
        .transform_filter(f"{SHOWN} && {only}")
        .transform_flatten(["x", "y", "low", "high"])
    )
    held = "[event.ctrlKey || event.metaKey]"  # the wheel alone scrolls the page
    seen = alt.selection_interval(name=zoom, bind="scales", encodings=["x"], zoom=f"wheel!{held}")
    near = alt.selection_point(
        name=f"near_{zoom}",
        nearest=True,
        on="pointerover",
        clear="pointerout",
        fields=["arm", "x"],
        empty=False,
    )
    fields = {"x": x["title"], "y": ylabel or "value", "low": "interval from", "high": "to"}
    layers = [
        lines.transform_filter("isValid(datum.low)")
        .mark_area(clip=True)
        .encode(x=x, y=low, y2="high:Q", color=colour, opacity=opacity(0.14, 0.03)),
        lines.mark_line(clip=True, strokeWidth=1.8).encode(
            x=x, y=y, color=colour, strokeDash=dash, opacity=opacity(1, 0.12)
        ),
        lines.transform_filter("hover")
        .mark_point(clip=True, filled=True, size=50)
        .encode(
            x=x,
            y=y,
            color=colour,
            shape=shape_of(arms),
            tooltip=nearest_tips(fields),
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
        )
        .add_params(seen, near),  # both on one: in two layers Vega makes each twice
    ]
    if seeded:
        alone = named("seeds").transform_filter(f"seeds && {SHOWN}").transform_flatten(["x", "y"])
        layers.insert(
            1,
            alone.mark_line(clip=True, strokeWidth=0.8).encode(
                x=x, y=y, color=colour, detail="seed:N", opacity=opacity(0.5, 0.08)
            ),
        )
    return layers


def _lines_across(x: alt.X, places: Sequence[float]) -> list[alt.Chart]:
    """Return dashed lines where arms left a shared prefix."""
    if not places:
        return []
    across = alt.Chart(alt.InlineData([{"x": place} for place in places]))
    return [across.mark_rule(clip=True, strokeDash=[4, 3], color=INK, opacity=0.7).encode(x=x)]


def _points(arms: Sequence[Look], source: str, panel: Panel, y: alt.Y) -> list[alt.Chart]:
    if panel.axis == "share":  # padded, as points at its ends are not to cover labels
        scale = alt.Scale(nice=False, domain=[0, 1], padding=6)
    else:
        scale = alt.Scale(nice=True, zero=panel.axis == "zero")

    def x(field: str) -> alt.X:
        return alt.X(field, title=panel.xlabel, scale=scale, axis=alt.Axis(tickCount=4))

    base, colour = named(source).transform_filter(SHOWN), colour_of(arms, legend=False)
    tips = ["arm:N", tip("value", "value"), tip("low", "interval from"), tip("high", "to")]
    seeds = base.transform_flatten(["seeds"])
    return [
        seeds.mark_circle(size=22, yOffset=6).encode(
            x=x("seeds:Q"),
            y=y,
            color=colour,
            opacity=opacity(0.5, 0.1),
            tooltip=["arm:N", tip("seeds", "one seed")],
        ),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=2.4)
        .encode(x=x("low:Q"), x2="high:Q", y=y, color=colour, opacity=opacity(1, 0.2)),
        base.mark_point(filled=True, size=55).encode(
            x=x("value:Q"),
            y=y,
            color=colour,
            shape=shape_of(arms),
            opacity=opacity(1, 0.2),
            tooltip=tips,
        ),
    ]


def _bar_layers(arms: Sequence[Look], source: str, panel: Panel, y: alt.Y) -> list[alt.Chart]:
    base = named(source).transform_filter(SHOWN)
    x = alt.X("shared:Q", title=panel.xlabel, axis=alt.Axis(tickCount=4))
    tips = ["arm:N", tip("own", "its own"), tip("shared", "shared prefix")]
    own: Spec = {"y": y, "color": colour_of(arms, legend=False), "tooltip": tips}
    return [
        base.mark_bar(opacity=0.35, height=12).encode(x=x, x2=alt.datum(0), **own),
        base.mark_bar(height=12).encode(x=x, x2="end:Q", **own),
    ]


def _side_by_side(charts: Sequence[alt.LayerChart]) -> alt.ConcatChart:
    return alt.concat(*charts, columns=3, spacing=24)


def _curve_row(look: Look, curve: Curve) -> Spec:
    nothing = np.full(len(curve.xs), np.nan)
    sides = (nothing if side is None else side for side in (curve.low, curve.high))
    low, high = map(rounded, sides)
    return {
        "arm": look.label,
        "x": rounded(curve.xs),
        "y": rounded(curve.ys),
        "low": low,
        "high": high,
    }


def _number_row(look: Look, own: Point | Bar) -> Spec:
    if isinstance(own, Bar):
        shared, end = rounded([own.shared, own.shared + own.own])
        return {"arm": look.label, "shared": shared, "end": end, "own": own.own}
    value, low, high = rounded([own.value, own.low, own.high])
    return {
        "arm": look.label,
        "value": value,
        "low": low,
        "high": high,
        "seeds": rounded(own.seeds),
    }
