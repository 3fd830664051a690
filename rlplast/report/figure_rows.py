"""Pictures with a row per arm: points with intervals, and bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlplast.report.looks import Ids, Look
from rlplast.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Bar", "Panel", "Point", "draw_bars", "draw_points"]


@dataclass(frozen=True)
class Point:
    """One arm's number: interval (None without one), and the values of its seeds."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Numbers of arms on one axis.

    Attributes:
        title: above the panel.
        xlabel: of the axis of numbers.
        points: index of an arm → its number.
        reference: where a line across all arms is drawn; NaN: at the baseline's number, if any.
        axis: share: the numbers are from 0 to 1, and the axis shows all of that; time: it begins
            at 0.
    """

    title: str
    xlabel: str
    points: Mapping[int, Point]
    reference: float | None = None
    axis: Literal["free", "share", "time"] = "free"


@dataclass(frozen=True)
class Bar:
    """One arm's cost: its own part and the part it shares with other arms."""

    own: float
    shared: float = 0.0


def draw_points(
    picture: str, arms: Sequence[Look], panels: Sequence[Panel], columns: int = 3
) -> "Figure":
    """Draw each arm's number with its interval, a row per arm, small dots for seeds.

    Args:
        picture: name of the picture, part of all ids.
        arms: all arms of the report; those without a number in any panel have no row.
        panels: what to draw, all with the same rows.
        columns: panels beside one another.
    """
    from matplotlib.figure import Figure

    ids = Ids(picture)
    shown = [look for look in arms if any(look.index in panel.points for panel in panels)]
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(2.6 + 2.5 * columns, rows * (0.95 + 0.3 * len(shown))), layout="constrained"
    )
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        _draw_panel_of_points(axes, shown, panel, ids)
        if number % columns == 0:
            _row_names(axes, shown, ids)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def draw_bars(
    picture: str, arms: Sequence[Look], panels: Mapping[tuple[str, str], Mapping[int, Bar]]
) -> "Figure":
    """Draw a bar per arm from zero on, its shared part pale and hatched.

    Args:
        picture: name of the picture, part of all ids.
        arms: all arms of the report; those without a bar have no row.
        panels: (title, label of the axis) → index of an arm → its cost.
    """
    from matplotlib.figure import Figure

    ids = Ids(picture)
    shown = [look for look in arms if any(look.index in bars for bars in panels.values())]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(2.6 + 2.5 * columns, rows * (0.95 + 0.3 * len(shown))), layout="constrained"
    )
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, (axes, (words, bars)) in enumerate(zip(grid, panels.items(), strict=False)):
        for row, look in enumerate(shown):
            bar = bars.get(look.index)
            if bar is not None:
                _draw_bar(axes, row, look, bar, ids)
        _rows_axis(axes, len(shown), *words)
        axes.set_xlim(left=0)
        if number % columns == 0:
            _row_names(axes, shown, ids)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _draw_panel_of_points(axes: "Axes", shown: Sequence[Look], panel: Panel, ids: Ids) -> None:
    reference = panel.reference
    if reference is not None and not math.isnan(reference):
        axes.axvline(reference, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for row, look in enumerate(shown):
        point = panel.points.get(look.index)
        if point is None:
            continue
        style: dict[str, Any] = {"color": look.colour, "linestyle": ""}
        if point.seeds:
            gid = ids(look.index)
            ys = [row + 0.27] * len(point.seeds)
            axes.plot(point.seeds, ys, marker=".", markersize=4, alpha=0.55, gid=gid, **style)
        if point.low is not None and point.high is not None:
            span = [point.low, point.high]
            axes.plot(span, [row, row], color=look.colour, linewidth=2.2, gid=ids(look.index))
        axes.plot(
            [point.value], [row], marker=look.marker, markersize=6, gid=ids(look.index), **style
        )
    _rows_axis(axes, len(shown), panel.title, panel.xlabel)
    if panel.axis == "time":
        longest = max(x for p in panel.points.values() for x in (p.value, *p.seeds) if x == x)
        axes.set_xlim(-0.04 * (longest or 1), 1.06 * (longest or 1))
    if panel.axis == "share":
        axes.set_xlim(-0.04, 1.04)  # markers at the ends are whole
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _draw_bar(axes: "Axes", row: int, look: Look, bar: Bar, ids: Ids) -> None:
    if bar.shared:
        axes.barh(
            row,
            bar.shared,
            height=0.6,
            facecolor="none",
            edgecolor=look.colour,
            linewidth=0.8,
            hatch="////",
        ).patches[0].set_gid(ids(look.index))
    own = axes.barh(row, bar.own, left=bar.shared, height=0.6, color=look.colour)
    own.patches[0].set_gid(ids(look.index))


def _rows_axis(axes: "Axes", rows: int, title: str, xlabel: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylim(rows - 0.4, -0.6)  # the first arm is the uppermost
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(title, loc="left")
    axes.set_xlabel(xlabel)


def _row_names(axes: "Axes", shown: Sequence[Look], ids: Ids) -> None:
    for row, look in enumerate(shown):
        axes.text(
            -0.03,
            row,
            look.short,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            gid=ids(look.index),
        )
