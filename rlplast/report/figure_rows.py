"""Pictures with a row per arm: points with intervals, and bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlplast.report.looks import DASHED, INK, Ids, Look, ids

__all__ = ["Axis", "Bar", "Panel", "Point", "draw_rows"]

Axis = Literal["free", "share", "time", "bars"]


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
        numbers: index of an arm → its number; all points, or with the axis "bars" all bars.
        reference: where a line across all arms is drawn.
        axis: share: the numbers are from 0 to 1, and the axis shows all of that; time and bars:
            it begins at 0, the markers of times being whole.
    """

    title: str
    xlabel: str
    numbers: Mapping[int, Point] | Mapping[int, Bar]
    reference: float | None = None
    axis: Axis = "free"


def draw_rows(picture: str, arms: Sequence[Look], panels: Sequence[Panel]) -> Figure:
    """Draw a row per arm in each panel: a point with interval and dots for seeds, or a bar.

    Args:
        picture: name of the picture, part of all ids.
        arms: all arms of the report; those without a number in any panel have no row.
        panels: what to draw, all with the same rows.
    """
    next_id = ids(picture)
    shown = [look for look in arms if any(look.index in panel.numbers for panel in panels)]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(2.6 + 2.5 * columns, rows * (0.95 + 0.3 * len(shown))), layout="constrained"
    )
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        if panel.reference is not None:
            axes.axvline(panel.reference, color=INK, linewidth=0.9, linestyle=DASHED, zorder=1)
        for row, look in enumerate(shown):
            match panel.numbers.get(look.index):
                case Point() as point:
                    _draw_point(axes, row, look, point, next_id)
                case Bar() as bar:
                    _draw_bar(axes, row, look, bar, next_id)
        _axes(axes, len(shown), panel)
        if number % columns == 0:
            _row_names(axes, shown, next_id)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _draw_point(axes: Axes, row: int, look: Look, point: Point, next_id: Ids) -> None:
    style: dict[str, Any] = {"color": look.colour, "linestyle": ""}
    if point.seeds:
        gid = next_id(look.index)
        ys = [row + 0.27] * len(point.seeds)
        axes.plot(point.seeds, ys, marker=".", markersize=4, alpha=0.55, gid=gid, **style)
    if point.low is not None and point.high is not None:
        span = [point.low, point.high]
        axes.plot(span, [row, row], color=look.colour, linewidth=2.2, gid=next_id(look.index))
    gid = next_id(look.index)
    axes.plot([point.value], [row], marker=look.marker, markersize=6, gid=gid, **style)


def _draw_bar(axes: Axes, row: int, look: Look, bar: Bar, next_id: Ids) -> None:
    if bar.shared:
        axes.barh(
            row,
            bar.shared,
            height=0.6,
            facecolor="none",
            edgecolor=look.colour,
            linewidth=0.8,
            hatch="////",
        ).patches[0].set_gid(next_id(look.index))
    own = axes.barh(row, bar.own, left=bar.shared, height=0.6, color=look.colour)
    own.patches[0].set_gid(next_id(look.index))


def _axes(axes: Axes, rows: int, panel: Panel) -> None:
    axes.set_ylim(rows - 0.4, -0.6)  # the first arm is the uppermost
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.xlabel)
    match panel.axis:
        case "bars":
            axes.set_xlim(left=0)
        case "time":
            points = [point for point in panel.numbers.values() if isinstance(point, Point)]
            longest = max(x for p in points for x in (p.value, *p.seeds) if x == x)
            axes.set_xlim(-0.04 * (longest or 1), 1.06 * (longest or 1))
        case "share":
            axes.set_xlim(-0.04, 1.04)  # markers at the ends are whole
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _row_names(axes: Axes, shown: Sequence[Look], next_id: Ids) -> None:
    for row, look in enumerate(shown):
        axes.text(
            -0.03,
            row,
            look.short,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            gid=next_id(look.index),
        )
