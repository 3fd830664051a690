"""Pictures of curves of several arms: one with bands, or small panels.

Whatever belongs to one arm carries an id ``arm-<index>-<picture>-<n>``, so that a page can hide
the arm, and an arm looks the same in all pictures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rlplast.report.looks import DASHED, INK, Ids, Look, ids

__all__ = ["Curve", "draw_curves", "draw_panels", "short_count"]

FEW = 40  # points of a curve up to which each has a marker; firings that have a large one


@dataclass(frozen=True)
class Curve:
    """One arm's curve; `low` and `high` are None without an interval. Arrays of shape (n,)."""

    xs: np.ndarray
    ys: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def draw_curves(
    picture: str,
    arms: Sequence[Look],
    curves: Mapping[int, Curve],
    labels: tuple[str, str],
    branches: Sequence[float],
    firings: Mapping[int, Sequence[float]],
) -> Figure:
    """Draw a curve with its band per arm, and below them where the hooks of each arm fired.

    Args:
        picture: name of the picture, part of all ids.
        arms: all arms of the report.
        curves: index of an arm → its curve.
        labels: of the axes x and y.
        branches: where arms left a shared prefix.
        firings: index of an arm → where its scheduled hooks fired.
    """
    next_id = ids(picture)
    fired = {arm: xs for arm, xs in firings.items() if xs}
    shown = [look for look in arms if look.index in curves]
    columns = _fitting(shown, 7.2)
    strip = 0.12 + 0.11 * len(fired)  # inches
    height = 3.3 + (strip if fired else 0) + 0.18 * math.ceil((len(curves) + 1) / columns)
    figure = Figure(figsize=(7.2, height), layout="constrained")
    ratios = [3.3, strip] if fired else [1]
    grid = figure.subplots(
        len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
    )[:, 0]
    upper, lower = grid[0], grid[-1]
    for look in shown:
        _draw_curve(upper, look, curves[look.index], next_id, len(curves))
    for axes in grid:
        for x in branches:
            axes.axvline(x, color=INK, linewidth=1, linestyle=DASHED, zorder=1)
    upper.set_ylabel(labels[1])
    if fired:
        _draw_firings(lower, arms, fired, next_id)
    _clock_axis(lower, labels[0])
    _legend(figure, shown, next_id, bool(branches), columns)
    return figure


def draw_panels(
    picture: str,
    arms: Sequence[Look],
    panels: Mapping[str, Mapping[int, Curve]],
    xlabel: str,
    branches: Sequence[float],
    shaded: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Draw small panels of curves, each with its own y axis, all over one x axis.

    Args:
        picture: name of the picture, part of all ids.
        arms: all arms of the report.
        panels: title → index of an arm → its curve.
        xlabel: of the common axis.
        branches: where arms left a shared prefix.
        shaded: title → where the panel's background is grey, from and to.
    """
    next_id = ids(picture)
    drawn = {arm for curves in panels.values() for arm in curves}
    shown = [look for look in arms if look.index in drawn]
    columns, in_legend = 3, _fitting(shown, 9.6)
    rows = math.ceil(len(panels) / columns)
    height = 1.75 * rows + 0.5 + 0.18 * math.ceil((len(drawn) + 1) / in_legend)
    figure = Figure(figsize=(9.6, height), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
    for number, (axes, (title, curves)) in enumerate(zip(grid, panels.items(), strict=False)):
        for look in arms:
            if look.index in curves:
                _draw_curve(axes, look, curves[look.index], next_id, len(curves), small=True)
        for x in branches:
            axes.axvline(x, color=INK, linewidth=0.8, linestyle=DASHED, zorder=1)
        for start, stop in (shaded or {}).get(title, ()):
            axes.axvspan(start, stop, color=INK, alpha=0.08, linewidth=0, zorder=0)
        axes.set_title(title, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        if number + columns >= len(panels):  # the lowest of its column
            _clock_axis(axes, xlabel, ticks=4)
            axes.tick_params(labelbottom=True)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    _legend(figure, shown, next_id, bool(branches), in_legend)
    return figure


def _draw_curve(
    axes: Axes, look: Look, curve: Curve, next_id: Ids, drawn: int, small: bool = False
) -> None:
    if curve.low is not None and curve.high is not None:
        axes.fill_between(
            curve.xs,
            curve.low,
            curve.high,
            color=look.colour,
            alpha=0.18 if drawn <= 5 else 0.08,
            linewidth=0,
            gid=next_id(look.index),
        )
    axes.plot(
        curve.xs,
        curve.ys,
        color=look.colour,
        linestyle=look.dash,
        linewidth=1.2 if small else 1.6,
        marker=look.marker,
        markevery=_some(len(curve.xs), look.index, small),
        markersize=2.5 if small else 3.5,
        gid=next_id(look.index),
    )
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)


def _some(points: int, index: int, small: bool) -> tuple[int, int]:
    """Return which points have a marker, as (first, step): all of few, of many in turns."""
    few = FEW // 3 if small else FEW
    step = 1 if points <= few else math.ceil(points / (few / 3))
    return (7 * index) % step, step


def _draw_firings(
    axes: Axes, arms: Sequence[Look], fired: Mapping[int, Sequence[float]], next_id: Ids
) -> None:
    """Draw a row of marks per arm, so that arms that fire at once cover one another nowhere."""
    rows = [look for look in arms if look.index in fired]
    for row, look in enumerate(rows):
        xs = fired[look.index]
        many = len(xs) > FEW
        axes.plot(
            xs,
            [row] * len(xs),
            color=look.colour,
            linestyle="",
            marker="|" if many else look.marker,
            markersize=4,
            gid=next_id(look.index),
        )
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylabel("hooks", rotation=0, ha="right", va="center")


def _clock_axis(axes: Axes, label: str, ticks: int = 7) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.xaxis.set_major_formatter(lambda value, position: short_count(value))


def short_count(value: float) -> str:
    """Return a number of steps as an axis says it.

    Examples:
        >>> short_count(0), short_count(2500), short_count(250_000), short_count(1.5e6)
        ('0', '2,500', '250k', '1.5M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and abs(value) >= 1e4:
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _fitting(arms: Sequence[Look], width: float) -> int:
    """Return how many columns of names fit into a legend; `width` in inches."""
    longest = max([len("branch point"), *(len(look.short) for look in arms)])
    return max(1, min(len(arms) + 1, int(width / (0.65 + 0.075 * longest))))


def _legend(
    figure: Figure, arms: Sequence[Look], next_id: Ids, branched: bool, columns: int
) -> None:
    handles = [
        Line2D(
            [], [], color=a.colour, linestyle=a.dash, marker=a.marker, markersize=4, label=a.short
        )
        for a in arms
    ]
    if branched:
        dashed = Line2D([], [], color=INK, linewidth=1, linestyle=DASHED, label="branch point")
        handles.append(dashed)
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=8, handlelength=2.5
    )
    for look, handle, text in zip(arms, legend.legend_handles, legend.get_texts(), strict=False):
        if handle is not None:
            handle.set_gid(next_id(look.index))
        text.set_gid(next_id(look.index))
