"""One picture of a run: scores, loss, norms and so on, with every scheduled hook marked."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.errors import RlplastError
from rlplast.report.arms import COLOURS
from rlplast.report.drawing import draw
from rlplast.run.read import read_lines
from rlplast.training.files import whole

__all__ = ["draw_run", "metric_names", "plot_run"]

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
    marks, panels = _marks(receipts, unit), _panels(rows) or {"return": {}}
    points = {
        title: [
            {"x": row[unit], "y": row[key], "label": label}
            for label, key in lines.items()
            for row in rows
            if row.get(key) is not None
        ]
        for title, lines in panels.items()
    }
    every = [point["x"] for own in points.values() for point in own]
    every += [x for xs in marks.values() for x in xs]
    scale = alt.Scale(domain=[min(every), max(every)] if every else [0, 1])
    axis = alt.Axis(labelExpr="format(datum.value, ',')")
    owners = {_owner(label): None for lines in panels.values() for label in lines}
    order = [TRAINING, "evaluation", *sorted(owners.keys() - {TRAINING, "evaluation"})]
    colours = dict(zip(order, itertools.cycle(COLOURS)))
    charts = []
    for number, (title, own) in enumerate(points.items(), 1):
        words = unit.replace("_", " ") if number == len(points) else None
        x = alt.X("x:Q", title=words, scale=scale, axis=axis)
        charts.append(_panel(title, own, list(panels[title]), colours, marks, x))
    shared = alt.vconcat(*charts, spacing=8).resolve_scale(
        color="independent", strokeDash="independent", stroke="shared"
    )
    return shared.to_dict()


def _panels(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Return title → label → key of what was measured, in the order of `LINES`."""
    rows = list(rows)
    keys = sorted({key for row in rows for key, value in row.items() if value is not None})
    networks = metric_names(rows)
    found: dict[str, dict[str, str]] = {}
    for title, pattern, label in LINES:
        for key in keys:
            match = re.fullmatch(pattern, key)
            if match and (not key.startswith("metric/") or match[1] in networks):
                found.setdefault(title, {})[match.expand(label)] = key
    return found


def _owner(label: str) -> str:
    """Return whose colour a line has: the norm and the distance of a network have one."""
    return label.removesuffix(FROM_START) or TRAINING


def _panel(
    title: str,
    points: Sequence[Row],
    labels: Sequence[str],
    colours: Mapping[str, str],
    marks: Mapping[str, list[int]],
    x: Any,
) -> Any:
    import altair as alt

    legend = alt.Legend(title=None, orient="right", symbolType="stroke") if any(labels) else None

    def scale(values: list[Any]) -> alt.Scale:
        return alt.Scale(domain=labels, range=values)

    colour = scale([colours[_owner(label)] for label in labels])
    dash = scale([[4, 3] if label.endswith(FROM_START) else [1, 0] for label in labels])
    heights = [point["y"] for point in points]
    if title == TEMPERATURE and max(heights) > 4 * min(heights) > 0:
        height = alt.Scale(type="log")
    else:
        height = alt.Scale(domain=[0, 1.05]) if title == AWAKE else alt.Scale(zero=False)
    ticks = alt.Axis(tickCount=4, labelExpr="format(datum.value, '.4~g')")
    few = len(points) < 30 * max(1, len(labels))
    layers = [
        alt.Chart(alt.InlineData(points))
        .mark_line(point={"size": 18} if few else False)
        .encode(
            x=x,
            y=alt.Y("y:Q", title=title, scale=height, axis=ticks),
            color=alt.Color("label:N", scale=colour, legend=legend),
            strokeDash=alt.StrokeDash("label:N", scale=dash, legend=legend),
        )
    ]
    if marks:
        words = {
            f"{own} ({len(xs)} times)" if len(xs) > 1 else own: xs for own, xs in marks.items()
        }
        fired = [{"x": at, "fired": own} for own, xs in words.items() for at in xs]
        turns = [MARKS[number % len(MARKS)] for number in range(len(words))]
        stroke = alt.Stroke(
            "fired:N",
            scale=alt.Scale(domain=list(words), range=turns),
            legend=alt.Legend(title=None, orient="top", columns=1, labelLimit=600),
        )
        rule = alt.Chart(alt.InlineData(fired)).mark_rule(strokeDash=[2, 2], strokeWidth=1.3)
        layers.append(rule.encode(x=x, stroke=stroke))
    return alt.layer(*layers).properties(width=620, height=110)


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
