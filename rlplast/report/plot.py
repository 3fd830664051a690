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

MARKS = ("#333333", "#a8321f", "#1f6fa8", "#7a5c00")  # hooks, in the order of their first firing
TEMPERATURE, AWAKE = "temperature α", "awake fraction"
FROM_START = ", distance from start"
TRAINING = "training"
LINES = (  # title of a panel, pattern of a line's key, its label
    ("return", r"train/return", TRAINING),
    ("return", r"eval/return_mean", "evaluation"),
    ("accuracy", r"train/accuracy", TRAINING),
    ("accuracy", r"eval/accuracy", "evaluation"),
    ("loss", r"train/loss", TRAINING),
    ("loss", r"eval/loss", "evaluation"),
    ("loss", r"eval/(.+)/loss", r"\1, held out"),
    (TEMPERATURE, r"train/temperature", ""),
    ("policy entropy", r"train/entropy", ""),
    ("weight norm", r"metric/weight_norm/([^/]+)", r"\1"),
    ("weight norm", r"metric/weight_difference/([^/]+)", rf"\1{FROM_START}"),
    (AWAKE, r"metric/awake_fraction/([^/]+)", r"\1"),
)


def plot_run(folder: Path, out: Path) -> Path:
    """Draw the metrics of a run's folder into a .png or .svg file, and return that.

    Raises:
        RlplastError: if it cannot be drawn or written, or if lines of the run are damaged. An
            older picture is then gone.
    """
    from rlplast.report.charts import CONFIG, VERSION  # slow to import; most commands draw nothing

    failures: list[str] = []
    try:
        out.unlink(missing_ok=True)
        rows, receipts = (read_lines(folder / f"{n}.jsonl") for n in ("metrics", "receipts"))
        spec = {str(out): draw_run(rows, receipts)}
        drawn = draw(spec, VERSION, CONFIG | {"background": "white"}, failures.append)
        if not drawn:
            raise RlplastError(failures[0])
        (picture,) = drawn.values()
        with whole(out) as temporary:
            temporary.write_bytes(picture.svg.encode() if out.suffix == ".svg" else picture.png)
    except OSError as error:
        raise RlplastError(f"picture {out} is not drawn: {error}") from error
    return out


def draw_run(rows: Sequence[Row], receipts: Sequence[Row]) -> dict[str, Any]:
    """Return a Vega-Lite chart of metrics above one another, with a line where hooks fired.

    A panel of which nothing was measured is left out. Every-update hooks have no line. `rows` are
    the lines of metrics.jsonl, `receipts` those of receipts.jsonl.
    """
    import altair as alt

    unit = "env_steps" if rows and "env_steps" in rows[-1] else "updates"
    marks, panels = _marks(receipts, unit), _points(rows, unit) or {"return": []}
    every = [point["x"] for own in (*panels.values(), marks) for point in own]
    scale = alt.Scale(domain=[min(every), max(every)] if every else [0, 1])
    words = list(dict.fromkeys(mark["fired"] for mark in marks))
    turns = list(itertools.islice(itertools.cycle(MARKS), len(words)))
    stroke = alt.Stroke(
        "fired:N",
        scale=alt.Scale(domain=words, range=turns),
        legend=alt.Legend(title=None, orient="top", columns=1, labelLimit=600),
    )
    owners = sorted({_owner(point["label"]) for own in panels.values() for point in own})
    order = dict.fromkeys([TRAINING, "evaluation", *owners])
    colours = dict(zip(order, itertools.cycle(COLOURS)))
    charts = []
    for number, (title, points) in enumerate(panels.items(), 1):
        label = unit.replace("_", " ") if number == len(panels) else None
        axis = alt.Axis(labelExpr="format(datum.value, ',')")
        x = alt.X("x:Q", title=label, scale=scale, axis=axis)
        layers = [_lines(title, points, colours).encode(x=x)]
        if marks:
            rule = alt.Chart(alt.InlineData(marks)).mark_rule(strokeDash=[2, 2], strokeWidth=1.3)
            layers.append(rule.encode(x=x, stroke=stroke))
        charts.append(alt.layer(*layers).properties(width=620, height=110))
    shared = alt.vconcat(*charts, spacing=8).resolve_scale(
        color="independent", strokeDash="independent", stroke="shared"
    )
    return shared.to_dict()


def _points(rows: Sequence[Row], unit: str) -> dict[str, list[dict[str, Any]]]:
    """Return title → the points of what was measured, in the order of `LINES`."""
    keys = sorted({key for row in rows for key, value in row.items() if value is not None})
    networks = _networks(keys)
    found: dict[str, list[dict[str, Any]]] = {}
    for (title, pattern, label), key in itertools.product(LINES, keys):
        match = re.fullmatch(pattern, key)
        if match and (not key.startswith("metric/") or match[1] in networks):
            text = match.expand(label)
            found.setdefault(title, []).extend(
                {"x": row[unit], "y": row[key], "label": text}
                for row in rows
                if row.get(key) is not None
            )
    return found


def _networks(keys: Sequence[str]) -> set[str]:
    """Return the networks that were measured, but for those of one tensor, such as log α."""
    tensors: dict[str, set[str]] = {}
    for metric, network, *tensor in (key.split("/")[1:] for key in keys if key.count("/") > 1):
        own = tensors.setdefault(network, set())
        if tensor and metric in ("weight_norm", "weight_difference"):
            own.add("/".join(tensor))
    return {network for network, own in tensors.items() if len(own) != 1}


def _owner(label: str) -> str:
    """Return whose colour a line has: the norm and the distance of a network have one."""
    return label.removesuffix(FROM_START) or TRAINING


def _lines(title: str, points: Sequence[Row], colours: Mapping[str, str]) -> Any:
    import altair as alt

    labels = list(dict.fromkeys(point["label"] for point in points))
    legend = alt.Legend(title=None, orient="right", symbolType="stroke") if any(labels) else None
    ranges = [colours[_owner(label)] for label in labels]
    dashes = [[4, 3] if label.endswith(FROM_START) else [1, 0] for label in labels]
    colour, dash = (alt.Scale(domain=labels, range=own) for own in (ranges, dashes))
    heights = [point["y"] for point in points]
    height = alt.Scale(domain=[0, 1.05]) if title == AWAKE else alt.Scale(zero=False)
    if title == TEMPERATURE and max(heights) > 4 * min(heights) > 0:
        height = alt.Scale(type="log")
    ticks = alt.Axis(tickCount=4, labelExpr="format(datum.value, '.4~g')")
    few = {"size": 18} if len(points) < 30 * max(1, len(labels)) else False
    return (
        alt.Chart(alt.InlineData(list(points)))
        .mark_line(point=few)
        .encode(
            y=alt.Y("y:Q", title=title, scale=height, axis=ticks),
            color=alt.Color("label:N", scale=colour, legend=legend),
            strokeDash=alt.StrokeDash("label:N", scale=dash, legend=legend),
        )
    )


def _marks(receipts: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    """Return where hooks fired, in the order of first firings, as "method: networks"."""
    fired: dict[int, dict[str, list[str]]] = {}
    for receipt in receipts:
        if receipt["norm_before"] is not None:  # else a summary of an every-update hook
            methods = fired.setdefault(receipt["clock"][unit], {})
            methods.setdefault(receipt["method"], []).append(receipt["network"])
    found: dict[str, list[int]] = {}
    for x, methods in fired.items():
        text = "; ".join(f"{method}: {', '.join(own)}" for method, own in methods.items())
        found.setdefault(text, []).append(x)
    return [
        {"x": x, "fired": f"{text} ({len(xs)} times)" if len(xs) > 1 else text}
        for text, xs in found.items()
        for x in xs
    ]
