"""Charts of numbers: a row per arm, points with intervals and dots for seeds, or bars.

- `Panel`: numbers of arms on one axis, `Point`s or `Bar`s.
- `chart_of_rows`: panels side by side, as a specification.
- `ranking`: one panel, in an order of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from rlplast.report.arm_styles import ArmStyle
from rlplast.report.vega import (
    INK,
    SHOWN,
    Spec,
    colour_of,
    finished,
    named,
    opacity,
    rounded,
    shape_of,
    side_by_side,
    tip,
)

__all__ = ["Axis", "Bar", "Panel", "Point", "chart_of_rows", "ranking"]

Axis = Literal["free", "share", "zero"]
_LEAST, _MOST, _HEIGHT = 15, 44, 330  # pixels of a row of a ranking; of all its rows, if they fit


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


def chart_of_rows(arms: Sequence[ArmStyle], found: Sequence[Panel]) -> Spec:
    """Return charts with a row per arm: a point with interval and dots for seeds, or a bar.

    Args:
        arms: all arms of the report; those without a number in any panel have no row.
        found: what to draw, all with the same rows.
    """
    names = [style.label for style in arms if any(style.index in panel.numbers for panel in found)]
    data, charts = {}, []
    for number, panel in enumerate(found):
        source = f"panel_{number}"
        data[source] = [_number_row(arms[i], own) for i, own in panel.numbers.items()]
        drawn = alt.layer(*_layers(arms, source, panel, names))
        charts.append(drawn.properties(width=230, height=alt.Step(22), title=panel.title))
    return finished(side_by_side(charts), arms, data)


def ranking(arms: Sequence[ArmStyle], panel: Panel) -> Spec:
    """Return a chart of one panel, with rows in the order of its numbers.

    Args:
        arms: all arms of the report.
        panel: what to draw, of points.
    """
    names = [arms[index].label for index in panel.numbers]
    data = {"panel_0": [_number_row(arms[i], own) for i, own in panel.numbers.items()]}
    height = len(names) * max(_LEAST, min(_MOST, _HEIGHT // max(1, len(names))))
    drawn = alt.layer(*_layers(arms, "panel_0", panel, names)).properties(width=560, height=height)
    return finished(drawn, arms, data)


def _layers(
    arms: Sequence[ArmStyle], source: str, panel: Panel, names: list[str]
) -> list[alt.Chart]:
    y = alt.Y("arm:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False))
    bars = any(isinstance(own, Bar) for own in panel.numbers.values())
    drawn = _bar_layers(arms, source, panel, y) if bars else _points(arms, source, panel, y)
    if panel.reference is not None:
        across = alt.Chart(alt.InlineData([{"x": panel.reference}]))
        drawn.append(across.mark_rule(strokeDash=[4, 3], color=INK, opacity=0.7).encode(x="x:Q"))
    return drawn


def _points(arms: Sequence[ArmStyle], source: str, panel: Panel, y: alt.Y) -> list[alt.Chart]:
    if panel.axis == "share":  # padded, as points at its ends are not to cover labels
        scale = alt.Scale(nice=False, domain=[0, 1], padding=6)
    else:
        zero = panel.axis == "zero"
        scale = alt.Scale(nice=True, zero=zero, padding=alt.Undefined if zero else 8)

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


def _bar_layers(arms: Sequence[ArmStyle], source: str, panel: Panel, y: alt.Y) -> list[alt.Chart]:
    base = named(source).transform_filter(SHOWN)
    x = alt.X("shared:Q", title=panel.xlabel, axis=alt.Axis(tickCount=4))
    tips = ["arm:N", tip("own", "its own"), tip("shared", "shared prefix")]
    own: Spec = {"y": y, "color": colour_of(arms, legend=False), "tooltip": tips}
    return [
        base.mark_bar(opacity=0.35, height=12).encode(x=x, x2=alt.datum(0), **own),
        base.mark_bar(height=12).encode(x=x, x2="end:Q", **own),
    ]


def _number_row(style: ArmStyle, own: Point | Bar) -> Spec:
    if isinstance(own, Bar):
        shared, end = rounded([own.shared, own.shared + own.own])
        return {"arm": style.label, "shared": shared, "end": end, "own": own.own}
    value, low, high = rounded([own.value, own.low, own.high])
    return {
        "arm": style.label,
        "value": value,
        "low": low,
        "high": high,
        "seeds": rounded(own.seeds),
    }
