"""One picture of a run: scores, loss, norms and so on, with every scheduled hook marked."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplast.core.checkpoint.files import fsync
from rlplast.run.read import read_lines

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
    from rlplast.report.vega import png, svg  # slow to import, and most commands draw nothing

    rows, receipts = (read_lines(folder / f"{n}.jsonl") for n in ("metrics", "receipts"))
    drawing = svg(draw_run(rows, receipts))
    write_whole(out, drawing.encode() if out.suffix == ".svg" else png(drawing))
    return out


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is whole at any moment."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.write_bytes(content)
    fsync(temporary)
    temporary.rename(path)


def draw_run(rows: Sequence[Row], receipts: Sequence[Row]) -> dict[str, Any]:
    """Return a Vega-Lite chart of metrics above one another, with a line where hooks fired.

    A panel of which nothing was measured is left out. Every-update hooks have no line. `rows` are
    the lines of metrics.jsonl, `receipts` those of receipts.jsonl.
    """
    import altair as alt

    unit = "env_steps" if rows and "env_steps" in rows[-1] else "updates"
    marks, panels = _marks(receipts, unit), _panels(rows, unit)
    every = [x for lines in panels.values() for line in lines for x in line.xs]
    every += [x for xs in marks.values() for x in xs]
    ends = [min(every), max(every)] if every else [0, 1]
    axis = alt.Axis(labelExpr="format(datum.value, ',')")
    words = {title: None for title in panels} | {list(panels)[-1]: unit.replace("_", " ")}
    charts = []
    for title, lines in panels.items():
        x = alt.X("x:Q", title=words[title], scale=alt.Scale(domain=ends), axis=axis)
        charts.append(_panel(title, lines, marks, x))
    shared = alt.vconcat(*charts, spacing=8).resolve_scale(
        color="independent", strokeDash="independent", stroke="shared"
    )
    return shared.to_dict()


def _panel(title: str, lines: Sequence[Line], marks: Mapping[str, list[int]], x: Any) -> Any:
    import altair as alt

    values = [
        {"x": a, "y": b, "label": line.label}
        for line in lines
        for a, b in zip(line.xs, line.ys, strict=True)
    ]
    labels = [line.label for line in lines]
    legend = alt.Legend(title=None, orient="right", symbolType="stroke") if any(labels) else None
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=labels, range=[line.colour for line in lines]),
        legend=legend,
    )
    dash = alt.StrokeDash(
        "label:N",
        scale=alt.Scale(domain=labels, range=[[4, 3] if line.dashed else [1, 0] for line in lines]),
        legend=legend,
    )
    heights = [y for line in lines for y in line.ys]
    if title == TEMPERATURE and max(heights) > 4 * min(heights) > 0:
        scale = alt.Scale(type="log")
    else:
        scale = alt.Scale(domain=[0, 1.05]) if title == AWAKE else alt.Scale(zero=False)
    y = alt.Y(
        "y:Q",
        title=title,
        scale=scale,
        axis=alt.Axis(tickCount=4, labelExpr="format(datum.value, '.4~g')"),
    )
    few = max((len(line.xs) for line in lines), default=0) < 30
    data = alt.Chart(alt.InlineData(values))
    layers = [
        data.mark_line(point={"size": 18} if few else False).encode(
            x=x, y=y, color=colour, strokeDash=dash
        )
    ]
    if marks:
        words = [
            text if len(xs) == 1 else f"{text} ({len(xs)} times)" for text, xs in marks.items()
        ]
        fired = [
            {"x": at, "fired": w} for w, xs in zip(words, marks.values(), strict=True) for at in xs
        ]
        stroke = alt.Stroke(
            "fired:N",
            scale=alt.Scale(domain=words, range=[MARKS[i % len(MARKS)] for i in range(len(words))]),
            legend=alt.Legend(title=None, orient="top", columns=1, labelLimit=600),
        )
        rule = alt.Chart(alt.InlineData(fired)).mark_rule(strokeDash=[2, 2], strokeWidth=1.3)
        layers.append(rule.encode(x=x, stroke=stroke))
    return alt.layer(*layers).properties(width=620, height=110)


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
