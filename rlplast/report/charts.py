"""Charts of several arms, as Vega-Lite specifications made by Altair.

- `curves`: an arm a line, with its interval, its seeds, and where its methods fired.
- `panels`: small charts of curves side by side, with a choice of layers.

One specification is drawn in the page and into the files. The page sets its parameters:

- `shown`: the labels of the arms to show. Others are filtered out, so the axes fit what is left.
- `focus`: the arm that is pointed at.
- `seeds`: whether each seed has its line.
- `hover`: whether points answer to the pointer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from rlplast.report.arm_styles import ArmStyle
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
    side_by_side,
    step_axis,
    tip,
    value_axis,
)

__all__ = [
    "Band",
    "Curve",
    "Firing",
    "curves",
    "panels",
]

WHOLE = "whole network"  # what the choice of layers says for the layer ""
_ROW, _STRIP = 7, 84  # pixels between the marks of firings of two arms, and of all at most


@dataclass(frozen=True)
class Curve:
    """A curve; `low` and `high` are not-a-number where there is no interval. Arrays of (n,)."""

    xs: np.ndarray
    ys: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class Band:
    """What others measured of an arm, by index: source and seeds in words, a mean with its band."""

    arm: int
    words: str
    curve: Curve


@dataclass(frozen=True)
class Firing:
    """Where a method fired, and what it did, in words."""

    x: float
    words: str


def curves(
    arms: Sequence[ArmStyle],
    drawn: Mapping[int, Curve],
    seeds: Mapping[int, Mapping[int, Curve]],
    labels: tuple[str, str],
    branches: Sequence[float],
    firings: Mapping[int, Sequence[Firing]],
    bands: Sequence[Band] = (),
    running: Mapping[int, Mapping[int, Curve]] | None = None,
) -> Spec:
    """Return a chart of a curve per arm.

    Args:
        arms: all arms of the report.
        drawn: index of an arm → its curve.
        seeds: index of an arm → seed → its curve.
        labels: of the axes x and y.
        branches: where arms left a shared prefix.
        firings: index of an arm → where its scheduled hooks fired.
        bands: drawn thin, behind everything else.
        running: index of an arm → seed → the curve so far of a run that has not ended.
    """
    fired = [style for style in arms if firings.get(style.index)]
    row = min(_ROW, _STRIP / max(1, len(fired)))
    strip = 4 + round(row * len(fired)) if fired else 0
    x = alt.X("x:Q", title=labels[0], axis=step_axis(7))
    scale = alt.Scale(
        zero=False,
        nice=True,
        range=[alt.expr(f"height - {strip}"), 0],
    )
    layers = _band_layers(arms, x, scale, labels) if bands else []
    reached = _reached(seeds, bands)
    layers += _curve_layers(arms, x, scale, labels[1], seeded=any(seeds.values()), reached=reached)
    if running:
        layers.append(_running_layer(arms, x, scale, labels))
    if fired:
        marks = named("firings").transform_filter(SHOWN).transform_flatten(["x", "what"])
        layers.append(
            marks.mark_point(
                filled=True, size=36, clip=True, y=alt.expr(f"height - 5 - {row:g} * datum.row")
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
    if bands:  # so that a picture alone says what its bands are
        captions = [f"{arms[band.arm].label}, dotted: published by {band.words}" for band in bands]
        own = alt.Title(
            captions, orient="bottom", anchor="start", frame="group", fontSize=10, offset=8
        )
        chart = chart.properties(title=own)
    data = {
        "curves": [_curve_row(arms[index], curve) for index, curve in drawn.items()],
        "seeds": [
            _seed_row(arms[index], seed, curve)
            for index, own in seeds.items()
            for seed, curve in own.items()
        ],
        "running": [
            _seed_row(arms[index], seed, curve)
            for index, own in (running or {}).items()
            for seed, curve in own.items()
        ],
        "firings": [
            {
                "arm": style.label,
                "row": row,
                "x": rounded([f.x for f in firings[style.index]]),
                "what": [f.words for f in firings[style.index]],
            }
            for row, style in enumerate(fired)
        ],
        "bands": [_curve_row(arms[b.arm], b.curve) | {"words": b.words} for b in bands],
    }
    return finished(chart, arms, data)


def panels(
    arms: Sequence[ArmStyle],
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
    spec = finished(side_by_side(charts), arms, data)
    if layers:
        choice = {"input": "select", "options": ["", *layers], "labels": [WHOLE, *layers]}
        spec["params"].append({"name": "layer", "value": "", "bind": choice | {"name": "layer "}})
    return spec


def _reached(
    seeds: Mapping[int, Mapping[int, Curve]], bands: Sequence[Band]
) -> tuple[float, float] | None:
    """Return the lowest and highest value of any seed and band; None without a seed.

    Intervals of few seeds may go further, even where no score can: there they are cut off.
    """
    values = [curve.ys for own in seeds.values() for curve in own.values()]
    if not values:
        return None
    values += [
        side for band in bands for side in (band.curve.low, band.curve.high) if side is not None
    ]
    finite = np.concatenate(values)
    finite = finite[np.isfinite(finite)]
    if not finite.size or finite.min() == finite.max():
        return None
    return float(finite.min()), float(finite.max())


def _curve_layers(
    arms: Sequence[ArmStyle],
    x: alt.X,
    scale: alt.Scale,
    ylabel: str,
    only: str = "true",
    zoom: str = "zoom",
    seeded: bool = False,
    reached: tuple[float, float] | None = None,
) -> list[alt.Chart]:
    """Return intervals, lines and points of curves; Ctrl + wheel and a drag move the x axis.

    Intervals are drawn within what was `reached`.
    """
    colour, dash = colour_of(arms), dash_of(arms)
    y, bottom = (
        alt.Y(f"{field}:Q", title=ylabel or None, scale=scale, axis=value_axis())
        for field in ("y", "bottom")
    )
    within = "clamp(datum.{}, {:.6g}, {:.6g})" if reached else "datum.{}"
    ends = [within.format(field, *(reached or ())) for field in ("low", "high")]
    rows = named("curves").transform_filter(f"{SHOWN} && {only}")
    lines = rows.transform_flatten(["x", "y", "low", "high"])
    single = rows.transform_filter("length(datum.x) == 1").transform_flatten(["x", "y"])
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
        .transform_calculate(bottom=ends[0], top=ends[1])
        .mark_area(clip=True)
        .encode(x=x, y=bottom, y2="top:Q", color=colour, opacity=opacity(_of_band(arms), 0.03)),
        lines.mark_line(clip=True, strokeWidth=1.8).encode(
            x=x, y=y, color=colour, strokeDash=dash, opacity=opacity(1, 0.12)
        ),
        single.mark_point(clip=True, filled=True, size=40).encode(  # a line of it cannot be seen
            x=x, y=y, color=colour, opacity=opacity(1, 0.12)
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


def _of_band(arms: Sequence[ArmStyle]) -> float:
    """Return how opaque a band is: of many arms less, so that lines are seen."""
    return round(0.14 * min(1.0, 8 / max(1, len(arms))), 3)


def _band_layers(
    arms: Sequence[ArmStyle], x: alt.X, scale: alt.Scale, labels: tuple[str, str]
) -> list[alt.Chart]:
    """Return bands in their arms' colours, paler than an interval and with dotted edges."""
    colour = colour_of(arms)
    data = named("bands").transform_filter(SHOWN).transform_flatten(["x", "y", "low", "high"])
    low, high = (
        alt.Y(f"{side}:Q", title=labels[1], scale=scale, axis=value_axis())
        for side in ("low", "high")
    )
    tips = [
        "arm:N",
        alt.Tooltip("words:N", title="published"),
        tip("x", labels[0]),
        *(tip(side, title) for side, title in {"y": "mean", "low": "from", "high": "to"}.items()),
    ]
    edges = [
        data.mark_line(clip=True, strokeWidth=1, strokeDash=[1, 2]).encode(
            x=x, y=side, color=colour, opacity=opacity(0.8, 0.1), detail="arm:N"
        )
        for side in (low, high)
    ]
    area = data.mark_area(clip=True).encode(
        x=x, y=low, y2="high:Q", color=colour, opacity=opacity(0.07, 0.02), tooltip=tips
    )
    return [area, *edges]


def _lines_across(x: alt.X, places: Sequence[float]) -> list[alt.Chart]:
    """Return dashed lines where arms left a shared prefix."""
    if not places:
        return []
    across = alt.Chart(alt.InlineData([{"x": place} for place in places]))
    return [across.mark_rule(clip=True, strokeDash=[4, 3], color=INK, opacity=0.7).encode(x=x)]


def _running_layer(
    arms: Sequence[ArmStyle], x: alt.X, scale: alt.Scale, labels: tuple[str, str]
) -> alt.Chart:
    """Return thin dotted lines of runs that have not ended."""
    y = alt.Y("y:Q", title=labels[1], scale=scale, axis=value_axis())
    lines = named("running").transform_filter(SHOWN).transform_flatten(["x", "y"])
    return lines.mark_line(clip=True, strokeWidth=1.5, strokeDash=[2, 2]).encode(
        x=x, y=y, color=colour_of(arms), detail="seed:N", opacity=opacity(0.9, 0.1)
    )


def _seed_row(style: ArmStyle, seed: int, curve: Curve) -> Spec:
    row = _curve_row(style, curve)
    return {key: row[key] for key in ("arm", "x", "y")} | {"seed": seed}


def _curve_row(style: ArmStyle, curve: Curve) -> Spec:
    nothing = np.full(len(curve.xs), np.nan)
    sides = (nothing if side is None else side for side in (curve.low, curve.high))
    low, high = map(rounded, sides)
    return {
        "arm": style.label,
        "x": rounded(curve.xs),
        "y": rounded(curve.ys),
        "low": low,
        "high": high,
    }
