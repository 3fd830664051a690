"""One picture of a run: scores, loss, norms and so on, with every scheduled hook marked."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.errors import RlplastError
from rlplast.report.arms import COLOURS
from rlplast.report.drawing import draw
from rlplast.run.read import read_lines
from rlplast.training.files import whole

__all__ = ["draw_run", "plot_run"]

Row = Mapping[str, Any]

LINES = (  # title of a panel, pattern of a line's key, its label
    ("return", r"train/return", "training"),
    ("return", r"eval/return_mean", "evaluation"),
    ("accuracy", r"train/accuracy", "training"),
    ("accuracy", r"eval/accuracy", "evaluation"),
    ("loss", r"train/loss", "training"),
    ("loss", r"eval/loss", "evaluation"),
    ("loss", r"eval/(.+)/loss", r"\1, held out"),
    ("temperature α", r"train/temperature", "training"),
    ("policy entropy", r"train/entropy", "training"),
    ("weight norm", r"metric/weight_norm/([^/]+)", r"\1"),
    ("distance from start", r"metric/weight_difference/([^/]+)", r"\1"),
    ("awake fraction", r"metric/awake_fraction/([^/]+)", r"\1"),
)


def plot_run(folder: Path) -> Path:
    """Draw the metrics of a run's folder into its ``plot.png``, and return that.

    Raises:
        RlplastError: if it cannot be drawn or written. An older picture is then gone.
        DamagedFile: if a file is cut or altered.
    """
    rows, receipts = (read_lines(folder / f"{name}.jsonl") for name in ("metrics", "receipts"))
    out = folder / "plot.png"
    try:
        out.unlink(missing_ok=True)
        picture = draw({"run": draw_run(rows, receipts)})["run"]
        with whole(out) as temporary:
            temporary.write_bytes(picture.png)
    except (OSError, RlplastError) as error:
        raise RlplastError(f"picture {out} is not drawn: {error}") from error
    return out


def draw_run(rows: Sequence[Row], receipts: Sequence[Row]) -> dict[str, Any]:
    """Return a Vega-Lite chart of metrics above one another, with lines where hooks fired."""
    import altair as alt

    unit = "env_steps" if rows and "env_steps" in rows[-1] else "updates"
    marks, points = _marks(receipts, unit), _points(rows, unit)
    labels = list(dict.fromkeys(point["label"] for point in points))
    colours = list(itertools.islice(itertools.cycle(COLOURS), len(labels)))
    every = [point["x"] for point in [*points, *marks]]
    x = alt.X(
        "x:Q",
        title=unit.replace("_", " "),
        scale=alt.Scale(domain=[min(every), max(every)] if every else [0, 1]),
        axis=alt.Axis(labelExpr="format(datum.value, ',')"),
    )
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=labels, range=colours),
        legend=alt.Legend(title=None, symbolType="stroke"),
    )
    fired = alt.Legend(title=None, orient="top", columns=1, labelLimit=600)
    rules = alt.Chart(alt.InlineData(marks)).mark_rule(strokeDash=[2, 2], strokeWidth=1.3)
    rules = rules.encode(x=x, stroke=alt.Stroke("fired:N", legend=fired, scale={"scheme": "dark2"}))
    ticks = alt.Axis(tickCount=4, labelExpr="format(datum.value, '.4~g')")
    charts = []
    for title in dict.fromkeys(point["title"] for point in points) or ["return"]:
        own = [point for point in points if point["title"] == title]
        y = alt.Y("y:Q", title=title, scale=alt.Scale(zero=False), axis=ticks)
        lines = alt.Chart(alt.InlineData(own)).mark_line(
            point={"size": 18} if len(own) < 60 else False
        )
        layers = [lines.encode(x=x, y=y, color=colour), *([rules] if marks else [])]
        charts.append(alt.layer(*layers).properties(width=620, height=110))
    return alt.vconcat(*charts, spacing=8).to_dict()


def _points(rows: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    """Return the points of what was measured, in the order of `LINES`."""
    keys = sorted({key for row in rows for key in row})
    return [
        {"x": row[unit], "y": row[key], "title": title, "label": match.expand(label)}
        for (title, pattern, label), key in itertools.product(LINES, keys)
        if (match := re.fullmatch(pattern, key))
        for row in rows
        if row.get(key) is not None
    ]


def _marks(receipts: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    """Return where hooks fired, as "method: networks"."""
    fired: dict[int, dict[str, list[str]]] = {}
    for receipt in receipts:
        if receipt["norm_before"] is not None:  # else a summary of an every-update hook
            methods = fired.setdefault(receipt["clock"][unit], {})
            methods.setdefault(receipt["method"], []).append(receipt["network"])
    return [
        {"x": x, "fired": "; ".join(f"{name}: {', '.join(own)}" for name, own in methods.items())}
        for x, methods in fired.items()
    ]
