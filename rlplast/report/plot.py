"""One picture of a run: scores, loss, norms and so on, with every scheduled hook marked."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplast.core.checkpoint.files import fsync
from rlplast.run.read import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_run", "metric_names", "plot_run", "write_whole"]

Row = Mapping[str, Any]

COLOURS = {
    "training": "#1f5fa8",
    "evaluation": "#d1682a",
    "q": "#1f5fa8",
    "actor": "#3a8f5c",
    "critic": "#8a4fa0",
    "temperature": "#b8336a",
    "model": "#1f5fa8",
    "gpt": "#1f5fa8",
}
OTHER_COLOURS = ("#8c6d1f", "#2a8c9c", "#6b6b6b")  # networks of other names, in alphabetical order
MARKS = ("#333333", "#a8321f", "#1f6fa8", "#7a5c00")  # hooks, in the order of their first firing
CORPUS_COLOURS = ("#d1682a", "#3a8f5c", "#8a4fa0", "#8c6d1f")
TEMPERATURE, AWAKE = "temperature α", "awake fraction"


@dataclass(frozen=True)
class Line:
    """One line of a panel; one without a label is what the panel's title says."""

    xs: list[int]
    ys: list[float]
    colour: str
    label: str = ""
    dashed: bool = False


def plot_run(folder: Path, out: Path) -> Path:
    """Draw the metrics of a run's folder into a .png or .svg file, and return that."""
    rows, receipts = (read_lines(folder / f"{n}.jsonl") for n in ("metrics", "receipts"))
    content = io.BytesIO()
    draw_run(rows, receipts).savefig(content, format=out.suffix.removeprefix("."), dpi=120)
    write_whole(out, content.getvalue())
    return out


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is whole at any moment."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.write_bytes(content)
    fsync(temporary)
    temporary.rename(path)


def draw_run(rows: Sequence[Row], receipts: Sequence[Row]) -> "Figure":
    """Draw metrics above one another, over a common clock, with a mark where hooks fired.

    A panel of which nothing was measured is left out. Every-update hooks have no mark. `rows` are
    the lines of metrics.jsonl, `receipts` those of receipts.jsonl.
    """
    from matplotlib.figure import Figure  # slow to import, and most commands draw nothing

    unit = "env_steps" if rows and "env_steps" in rows[-1] else "updates"
    panels = _panels(rows, unit)
    figure = Figure(figsize=(9.5, 2.5 + 1.6 * len(panels)), layout="constrained")
    grid = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        _draw_panel(axes, title, lines)
    _draw_marks(grid, _marks(receipts, unit))
    grid[-1].set_xlabel(unit.replace("_", " "))
    grid[-1].xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    figure.align_ylabels(grid)
    return figure


def _panels(rows: Sequence[Row], unit: str) -> dict[str, list[Line]]:
    """Return title → lines of the panels of which something was measured, return always."""
    of_sac = any("train/loss_actor" in row for row in rows)
    metrics = metric_names(rows)
    others = sorted(network for network in metrics if network not in COLOURS)
    colours = COLOURS | dict(zip(others, OTHER_COLOURS * 9, strict=False))

    def line(key: str, owner: str, label: str = "", dashed: bool = False) -> Line:
        measured = [row for row in rows if row.get(key) is not None]
        xs, ys = [row[unit] for row in measured], [row[key] for row in measured]
        return Line(xs, ys, colours[owner], label, dashed)

    def of_networks(metric: str, suffix: str = "", dashed: bool = False) -> list[Line]:
        return [
            line(f"metric/{metric}/{network}", network, network + suffix, dashed)
            for network in sorted(metrics)
        ]

    distances = of_networks("weight_difference", ": distance\nfrom start", dashed=True)
    norms = sorted(of_networks("weight_norm") + distances, key=lambda own: own.label)
    panels = {
        "return": [
            line("train/return", "training", "training"),
            line("eval/return_mean", "evaluation", "evaluation"),
        ],
        "accuracy": [
            line("train/accuracy", "training", "training"),
            line("eval/accuracy", "evaluation", "evaluation"),
        ],
        "critic loss" if of_sac else "loss": _losses(rows, line, "critic" if of_sac else "q"),
        TEMPERATURE: [line("train/temperature", "temperature")],
        "policy entropy": [line("train/entropy", "actor")],
        "weight norm": norms,
        AWAKE: of_networks("awake_fraction"),
    }
    found = {title: [own for own in lines if own.xs] for title, lines in panels.items()}
    plays = not any("tokens" in row or "epochs" in row for row in rows)
    return {title: own for title, own in found.items() if own or (title == "return" and plays)}


def _losses(rows: Sequence[Row], line: Callable[..., Line], owner: str) -> list[Line]:
    """Return the lines of the training loss and of every evaluation's, one per corpus."""
    names = {name for row in rows for name in row if re.fullmatch(r"eval/(.+/)?loss", name)}
    corpora = sorted(name for name in names if name != "eval/loss")
    if not names:
        return [line("train/loss", owner)]
    lines = [line("train/loss", "training", "training")]
    if not corpora:
        return [*lines, line("eval/loss", "evaluation", "evaluation")]
    for name, colour in zip(corpora, CORPUS_COLOURS * 9, strict=False):
        label = f"{name.split('/')[1]}, held out"
        lines.append(replace(line(name, "evaluation", label), colour=colour))
    return lines


def metric_names(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return network → metrics measured of it, but of networks of one tensor.

    Such a network is a scalar, for example a temperature's log α: its norm says nothing.
    """
    names = {name for row in rows for name, value in row.items() if value is not None}
    parts = sorted(name.split("/")[1:] for name in names if name.startswith("metric/"))
    tensors: dict[str, set[str]] = {}
    for metric, network, *tensor in (own for own in parts if len(own) > 1):
        if tensor and metric in ("weight_norm", "weight_difference"):
            tensors.setdefault(network, set()).add("/".join(tensor))
    found: dict[str, list[str]] = {}
    for own in parts:
        if len(own) == 2 and len(tensors.get(own[1], "ab")) != 1:
            found.setdefault(own[1], []).append(own[0])
    return found


def _draw_panel(axes: "Axes", title: str, lines: Sequence[Line]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    for line in lines:
        axes.plot(
            line.xs,
            line.ys,
            color=line.colour,
            label=line.label,
            linestyle="--" if line.dashed else "-",
            marker="o" if len(line.xs) < 30 else "",
            markersize=3,
            linewidth=1.5,
        )
    axes.set_ylabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if title == TEMPERATURE:
        axes.set_yscale("log")
        wide = max(lines[0].ys) > 4 * min(lines[0].ys)  # else 1, 2, 5 name too few points
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(4))
        axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    if title == AWAKE:
        axes.set_ylim(0, 1.05)
    if any(line.label for line in lines):
        # beside the panel, where it covers nothing
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)


def _marks(receipts: Sequence[Row], unit: str) -> dict[str, list[int]]:
    """Return what fired, as "method: networks", → when, in the order of first firings."""
    fired: dict[int, dict[str, list[str]]] = {}
    for receipt in receipts:
        if receipt["norm_before"] is not None:  # else a summary of an every-update hook
            methods = fired.setdefault(receipt["clock"][unit], {})
            methods.setdefault(receipt["method"], []).append(receipt["network"])
    marks: dict[str, list[int]] = {}
    for x, methods in fired.items():
        text = "; ".join(f"{method}: {', '.join(own)}" for method, own in methods.items())
        marks.setdefault(text, []).append(x)
    return marks


def _draw_marks(grid: Sequence["Axes"], marks: Mapping[str, list[int]]) -> None:
    """Draw a line per firing through all panels, and each distinct text once above them."""
    middle = sum(grid[0].get_xlim()) / 2
    for row, (text, xs) in enumerate(marks.items()):
        colour = MARKS[row % len(MARKS)]
        for axes in grid:
            for x in xs:
                axes.axvline(x, color=colour, linewidth=1.2, linestyle=":")
        grid[0].annotate(
            text if len(xs) == 1 else f"{text} ({len(xs)} times)",
            (xs[0], 1),
            (0, 3 + 12 * row),  # a row each, so that no two texts overlap
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if xs[0] < middle else "right",
            color=colour,
            fontsize=9,
        )
