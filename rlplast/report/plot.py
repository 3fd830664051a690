"""One picture of a run: return, loss and weight norm, with every hook marked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.files import fsync

__all__ = ["plot_run"]

PANELS = (
    ("return", (("train/return", "training"), ("eval/return_mean", "evaluation"))),
    ("loss", (("train/loss", "loss"),)),
    ("weight norm", (("metric/weight_norm/", ""), ("metric/weight_difference/", "from start, "))),
)
COLOURS = ("#1f5fa8", "#d1682a", "#3a8f5c", "#8a4fa0")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _series(
    rows: Sequence[dict[str, Any]], wanted: Sequence[tuple[str, str]], unit: str
) -> dict[str, tuple[list[int], list[float]]]:
    """Return label → (clock, values); a name ending with ``/`` stands for one per network."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for prefix, label in wanted:
            for name, value in row.items():
                whole = name.startswith(prefix) and "/" not in name[len(prefix) :]
                if value is not None and (name == prefix or (prefix.endswith("/") and whole)):
                    own = label + name[len(prefix) :]
                    xs, ys = found.setdefault(own, ([], []))
                    xs.append(row[unit])
                    ys.append(value)
    return found


def plot_run(folder: Path, out: Path) -> Path:
    """Draw a run's metrics and mark its scheduled hooks.

    Args:
        folder: a run's folder.
        out: a .png or .svg file.

    Returns:
        `out`.
    """
    from matplotlib.figure import Figure

    rows, receipts = _rows(folder / "metrics.jsonl"), _rows(folder / "receipts.jsonl")
    unit = "env_steps" if rows and "env_steps" in rows[-1] else "updates"
    marks = [(r["clock"][unit], r["method"]) for r in receipts if r["firings"] == 1]
    figure = Figure(figsize=(8, 7.5), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (title, wanted) in zip(panels, PANELS, strict=True):
        series = _series(rows, wanted, unit)
        for (label, (xs, ys)), colour in zip(series.items(), COLOURS * 9, strict=False):
            style = "o-" if len(xs) < 30 else "-"
            axes.plot(np.array(xs), np.array(ys), style, color=colour, label=label, ms=3, lw=1.5)
        for x in sorted({x for x, _ in marks}):
            axes.axvline(x, color="#333333", lw=1, ls="--")
        axes.set_ylabel(title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if series and (len(series) > 1 or title != "loss"):
            axes.legend(frameon=False, loc="best", fontsize=9)
    for x in sorted({x for x, _ in marks}):
        names = ", ".join(sorted({m for own, m in marks if own == x}))
        panels[0].annotate(
            names, (x, 1.0), (3, 2), xycoords=("data", "axes fraction"), textcoords="offset points"
        )
    panels[-1].set_xlabel(unit.replace("_", " "))
    panels[-1].xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    temporary = out.with_name(f".{out.stem}.tmp{out.suffix}")
    figure.savefig(temporary, dpi=120)
    fsync(temporary)
    temporary.rename(out)
    return out
