"""Charts of lines through points in their own order, a panel each: paths on a plane, densities.

- `Line`: one line, of a stretch of an arm.
- `outline`: the line around the cells of a density.
- `chart_of_lines`: panels side by side, as a specification: a colour per arm, dashes per stretch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt
import numpy as np

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
    side_by_side,
    step_axis,
    value_axis,
)

__all__ = ["LOWEST", "Kind", "Line", "chart_of_lines", "outline"]

Kind = Literal["plain", "density", "log density", "plane"]
LOWEST = 1e-8  # of a line's largest value: what a logarithmic axis draws
_DASHES = ([4, 3], [1, 0])  # of the first stretch and of the second


@dataclass(frozen=True)
class Line:
    """A line through points, arrays of (n,): of an arm, by index, and a stretch of its run."""

    arm: int
    stretch: str
    xs: np.ndarray
    ys: np.ndarray


def outline(edges: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y, (2n,) each, of the line along the tops of n cells: two points per cell.

    Args:
        edges: of the cells, (n + 1,).
        values: in them, (n,).
    """
    return np.repeat(edges, 2)[1:-1], np.repeat(values, 2)


def chart_of_lines(
    arms: Sequence[ArmStyle],
    found: Mapping[str, Sequence[Line]],
    labels: tuple[str, str],
    kind: Kind = "plain",
) -> Spec:
    """Return a panel for each title.

    Args:
        arms: all arms of the report.
        found: title → its lines.
        labels: of the axes x and y.
        kind: density: outlines of cells, over an axis from 0; log density: over a logarithmic
            axis, where a line has gaps below 1e-8 of its largest value; plane: both axes have one
            scale, ends of lines have a dot, and the origin a cross.
    """
    names = list(dict.fromkeys(line.stretch for own in found.values() for line in own))
    dash = alt.StrokeDash(
        "stretch:N",
        scale=alt.Scale(domain=names, range=list(_DASHES[-len(names) :])),
        legend=alt.Legend(title=None, orient="bottom") if len(names) > 1 else None,
    )
    width, height = (230, 230) if kind == "plane" else (250, 150)
    charts = []
    for number, (title, own) in enumerate(found.items()):
        layers = _layers(arms, f"datum.panel == {number}", _axes(own, labels, kind), kind, dash)
        charts.append(alt.layer(*layers).properties(title=title, width=width, height=height))
    rows = [
        _row(arms[line.arm], number, line, kind)
        for number, own in enumerate(found.values())
        for line in own
    ]
    return finished(side_by_side(charts), arms, {"lines": rows})


def _layers(
    arms: Sequence[ArmStyle], only: str, axes: tuple[alt.X, alt.Y], kind: Kind, dash: alt.StrokeDash
) -> list[alt.Chart]:
    (x, y), colour, bright = axes, colour_of(arms), opacity(1, 0.12)
    points = (
        named("lines").transform_filter(f"{SHOWN} && {only}").transform_flatten(["x", "y", "n"])
    )
    lines = points.mark_line(clip=True, strokeWidth=1.6)
    layers = [lines.encode(x=x, y=y, order="n:Q", color=colour, strokeDash=dash, opacity=bright)]
    if kind == "plane":
        ends = points.transform_filter("datum.n == datum.last").mark_point(filled=True, size=45)
        start = alt.Chart(alt.InlineData([{"x": 0, "y": 0}])).mark_point(shape="cross", size=70)
        layers.append(ends.encode(x=x, y=y, color=colour, opacity=bright))
        layers.append(start.encode(x=x, y=y, color=alt.value(INK)))
    return layers


def _axes(own: Sequence[Line], labels: tuple[str, str], kind: Kind) -> tuple[alt.X, alt.Y]:
    xs, ys, across, up = alt.Scale(zero=False), alt.Scale(zero=False), value_axis(), value_axis()
    match kind:
        case "plain":
            across = step_axis(4)
        case "density":
            ys = alt.Scale(zero=True)
        case "log density":
            ys, up = alt.Scale(type="log", nice=False), alt.Axis(format="~e", tickCount=5)
        case "plane":
            xs, ys = (alt.Scale(domain=ends, nice=False, zero=False) for ends in _square(own))
    x = alt.X("x:Q", title=labels[0], scale=xs, axis=across)
    return x, alt.Y("y:Q", title=labels[1], scale=ys, axis=up)


def _square(own: Sequence[Line]) -> tuple[list[float], list[float]]:
    """Return domains of one length that hold the origin and all points."""
    xs = np.concatenate([[0.0], *(line.xs for line in own)])
    ys = np.concatenate([[0.0], *(line.ys for line in own)])
    half = 0.55 * max(np.ptp(xs), np.ptp(ys)) or 1.0
    middles = ((values.max() + values.min()) / 2 for values in (xs, ys))
    x, y = ([float(middle - half), float(middle + half)] for middle in middles)
    return x, y


def _row(style: ArmStyle, panel: int, line: Line, kind: Kind) -> Spec:
    ys = line.ys
    if kind == "log density":
        ys = np.where(ys < LOWEST * ys.max(), np.nan, ys)
    return {
        "arm": style.label,
        "stretch": line.stretch,
        "panel": panel,
        "x": rounded(line.xs),
        "y": rounded(ys),
        "n": list(range(len(line.xs))),
        "last": len(line.xs) - 1,
    }
