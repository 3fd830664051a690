"""What all charts of a report have in common: scales, axes, what points say, and their files.

- `CONFIG`, `VERSION`: of Vega-Lite.
- `finished`: a chart of Altair's as a specification with its data and parameters.
- `draw`: the pictures of specifications.
"""

import base64
import json
import math
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from rlplast.report import drawing
from rlplast.report.arm_styles import ArmStyle, printable
from rlplast.study.child import exit_of

__all__ = [
    "CONFIG",
    "INK",
    "PAPER",
    "SHOWN",
    "VERSION",
    "Picture",
    "Spec",
    "colour_of",
    "dash_of",
    "draw",
    "finished",
    "named",
    "nearest_tips",
    "opacity",
    "rounded",
    "shape_of",
    "side_by_side",
    "step_axis",
    "tip",
    "value_axis",
]

Spec = dict[str, Any]
SHOWN = "indexof(shown, datum.arm) >= 0"  # a filter: what belongs to an arm that is shown
VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])  # of Vega-Lite
INK = "currentColor"  # that of the page's text; black in files
CONFIG: Spec = {
    "background": "transparent",
    "padding": {"left": 4, "top": 4, "right": 14, "bottom": 4},  # room for the last label
    "font": "DejaVu Sans, Verdana, sans-serif",
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "tickColor": INK,
        "domainColor": INK,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 210,
    },
    "legend": {"labelColor": INK, "titleColor": INK},
    "title": {"color": INK, "anchor": "start", "fontWeight": "normal", "fontSize": 13},
    "view": {"stroke": None},
}
PAPER = CONFIG | {"background": "white"}  # in files
_START, _EACH = 60.0, 20.0  # seconds that drawing may take: to begin, and for each picture
_OPACITY = "focus == null || focus == datum.arm ? {} : {}"


class Picture(NamedTuple):
    """A chart as the text of an .svg file and the bytes of a .png file."""

    svg: str
    png: bytes


def step_axis(ticks: int) -> alt.Axis:
    """Return an axis of whole steps: 3, 30k, 1.5M."""
    # Of a domain of one step Vega has a tick in the middle all the same.
    label = "datum.value % 1 ? '' : format(datum.value, '~s')"
    return alt.Axis(tickCount=ticks, tickMinStep=1, labelExpr=label)


def value_axis() -> alt.Axis:
    """Return an axis of measured values: 0.25, 30k, 1.5M, 5.6e+11."""
    # Vega's own labels of a constant are wrong: it gives a domain without length no digits
    size = "abs(datum.value)"
    kind = f"{size} < 1e4 ? '.4~g' : {size} < 1e9 ? '~s' : '.3~e'"
    return alt.Axis(labelExpr=f"format(datum.value, {kind})")


def named(name: str) -> alt.Chart:
    """Return a chart of the data set of that name, which `finished` brings."""
    return alt.Chart(alt.NamedData(name))


def colour_of(arms: Sequence[ArmStyle], legend: bool = True) -> alt.Color:
    """Return the channel that gives each arm its colour."""
    scale = _scale(arms, [a.colour for a in arms])
    return alt.Color("arm:N", scale=scale, legend=_legend(arms) if legend else None)


def dash_of(arms: Sequence[ArmStyle]) -> alt.StrokeDash:
    """Return the channel that gives each arm's lines their dashes."""
    scale = _scale(arms, [list(a.dash) for a in arms])
    return alt.StrokeDash("arm:N", scale=scale, legend=_legend(arms))


def shape_of(arms: Sequence[ArmStyle]) -> alt.Shape:
    """Return the channel that gives each arm's points their shape."""
    return alt.Shape("arm:N", scale=_scale(arms, [a.shape for a in arms]), legend=None)


def _scale(arms: Sequence[ArmStyle], values: list[Any]) -> alt.Scale:
    return alt.Scale(domain=[look.label for look in arms], range=values)


def _legend(arms: Sequence[ArmStyle]) -> alt.Legend | None:
    if len(arms) < 2:
        return None
    longest = min(26, max(len(look.label) for look in arms))
    columns = max(1, min(len(arms), 660 // (40 + 7 * longest)))
    return alt.Legend(
        title=None,
        orient="bottom",
        columns=columns,
        labelLimit=180,
        symbolType="stroke",
        symbolLimit=0,
        symbolOpacity=1,
        symbolStrokeWidth=2,
    )


def opacity(full: float, faint: float) -> Any:
    """Return an opacity: `faint` while another arm is pointed at."""
    return alt.value(alt.expr(_OPACITY.format(full, faint)))


def tip(field: str, title: str) -> alt.Tooltip:
    """Return a number that the thing under the pointer says, with its title.

    The title is never a user's: Vega-Lite (6.4) puts it into an expression and lets quotes end it.
    """
    return alt.Tooltip(f"{field}:Q", title=title, format=",.4~g")


def nearest_tips(fields: Mapping[str, str]) -> Any:
    """Return what the point nearest to the mouse says: its arm, and field → title of numbers.

    Vega-Lite's own list of fields leaves names out there (as of 6.4 it looks them up in the cell
    around the point, which has the point as its datum).
    """
    own = "(datum.datum || datum)"
    numbers = (
        f"{json.dumps(title)}: format({own}.{field}, ',.4~g')" for field, title in fields.items()
    )
    return alt.value(alt.expr(f"{{'arm': {own}.arm, {', '.join(numbers)}}}"))


def side_by_side(charts: Sequence[alt.LayerChart]) -> alt.ConcatChart:
    """Return charts beside each other, at most three."""
    return alt.concat(*charts, columns=3, spacing=24)


def rounded(values: Iterable[float | None]) -> list[float | int | None]:
    """Return numbers of five digits, whole ones whole, None for what is not finite."""
    found: list[float | int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(None)
        elif value == round(value) and abs(value) < 1e15:
            found.append(int(value))
        else:
            found.append(float(f"{value:.5g}"))
    return found


def finished(chart: Any, arms: Sequence[ArmStyle], data: Mapping[str, Any]) -> Spec:
    """Return a chart as a specification, with its data and the parameters that a page sets."""
    spec = _titled(chart.to_dict())
    spec.pop("config", None)  # the same for all charts of a page
    spec.setdefault("datasets", {}).update(data)
    own = [
        {"name": "shown", "value": [look.label for look in arms]},
        {"name": "seeds", "value": False},
        {"name": "hover", "value": False},
        {"name": "focus", "value": None},
    ]
    spec["params"] = own + spec.get("params", [])
    return spec


def _titled(value: Any) -> Any:
    """Return a part of a specification whose titles have no backslash.

    Vega-Lite (6.4) writes titles into expressions, where a backslash before a quote ends the text.
    """
    if isinstance(value, list):
        return [_titled(own) for own in value]
    if not isinstance(value, dict):
        return value
    return {
        key: own.replace("\\", "⧵") if key == "title" and isinstance(own, str) else _titled(own)
        for key, own in value.items()
    }


def _printable(value: Any) -> Any:
    """Return a part of a specification whose texts an .svg file can hold."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(own) for own in value]
        case dict():
            return {key: _printable(own) for key, own in value.items()}
    return value


def draw(specs: Mapping[str, Spec], warn: Callable[[str], object]) -> dict[str, Picture]:
    """Return the pictures of charts, all drawn by one other process.

    Args:
        specs: name of a picture → its chart.
        warn: called with a line that names the pictures that could not be drawn, and why.
    """
    if not specs:
        return {}
    request = {"version": VERSION, "config": PAPER, "specs": [*map(_printable, specs.values())]}
    answers, why = _answers(json.dumps(request).encode(), _START + _EACH * len(specs))
    found: dict[str, Picture] = {}
    for name, answer in zip(specs, answers, strict=False):  # fewer, if the process was ended
        if "error" in answer:
            warn(f"picture {name} is not drawn: {answer['error']}")
        else:
            found[name] = Picture(answer["svg"], base64.b64decode(answer["png"]))
    rest = list(specs)[len(answers) :]
    if rest:
        others = f" and {len(rest) - 1} after it are" if len(rest) > 1 else " is"
        warn(f"picture {rest[0]}{others} not drawn: {why}")
    return found


def _answers(request: bytes, seconds: float) -> tuple[list[dict[str, str]], str]:
    """Return what the process that draws answered, and why it did not go on."""
    program = [sys.executable, "-P", drawing.__file__]  # finds what this process finds
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            program,
            input=request,
            capture_output=True,
            env=os.environ | paths,
            timeout=seconds,
            check=False,
        )
        output, why = done.stdout, _reason(done.returncode, done.stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired as error:
        output, why = error.stdout or b"", f"it took longer than {seconds:g} s"
    except OSError as error:
        output, why = b"", f"no process can be started ({error})"
    lines = output.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")], why


def _reason(code: int, stderr: str) -> str:
    """Return why a process ended, from its exit code and its stderr."""
    _, killed = exit_of(code)
    if not killed:
        return (stderr.strip().splitlines() or [f"its process ended with exit code {code}"])[-1]
    fatal = re.search(r"^# (Fatal .*?)\.?$", stderr, re.MULTILINE)
    why = f"its process was {killed}" + (f" ({fatal[1]})" if fatal else "")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return why
    return (
        f"{why}; addresses are limited to {limit / 1e9:.3g} GB, and drawing reserves about 60 GB, "
        "most of which it never uses: raise `ulimit -v`"
    )
