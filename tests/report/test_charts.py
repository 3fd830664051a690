"""Charts of several arms: what is drawn, whose it is, and what their files say."""

import re
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pytest

from rlplast.report import charts
from rlplast.report.arm_styles import BASELINE, arm_styles
from rlplast.report.charts import Curve, Firing
from rlplast.report.drawing import png
from rlplast.report.lines import Kind, Line, chart_of_lines
from rlplast.report.rows import Bar, Panel, Point, chart_of_rows
from rlplast.report.vega import Spec
from tests.marks import slow_but
from tests.report.drawn import svg

NAMES = ("none", "fire", "full_reset")
MANY = tuple(f"an arm with quite a long name {number}" for number in range(12))
XS = np.arange(0.0, 6000.0, 500.0)
KINDS: tuple[Kind, ...] = ("plain", "density", "log density", "plane")  # of lines
DRAWN = slow_but(["curves", "bars", "density"], ["curves", "panels", "points", "bars", *KINDS])
every_drawing = pytest.mark.parametrize("kind", DRAWN)
every_kind = pytest.mark.parametrize("kind", ["curves", "panels", "points", "bars", *KINDS])


def curves(arms: int, points: np.ndarray = XS) -> dict[int, Curve]:
    return {
        arm: Curve(points, points * (arm + 1), points * (arm + 1) - 50, points * (arm + 1) + 50)
        for arm in range(arms)
    }


def points(arms: int) -> dict[int, Point]:
    return {arm: Point(arm, arm - 0.5, arm + 1.0, (arm - 1.0, arm + 2.0)) for arm in range(arms)}


@cache
def all_charts(names: tuple[str, ...]) -> dict[str, Spec]:
    """One chart of each kind, of all arms."""
    arms, n = arm_styles(names, names[0]), len(names)
    fired = {arm: [Firing(1000.0 * arm, "fire on q")] for arm in range(1, n)}
    seeds = {0: {1: curves(1)[0], 2: curves(1)[0]}}
    layers = {"weight_norm": {"": curves(n), "fc1": curves(1)}, "churn": {"": curves(n)}}
    panels = [Panel("final", "score", points(n), 0.0), Panel("area", "score", points(n))]
    bars = [Panel("task", "seconds", {arm: Bar(3.0, 2.0) for arm in range(n)})]
    lines = {
        f"{arm} here": [Line(arm, m, XS, XS + 1) for m in ("first", "last")] for arm in range(n)
    }
    return {
        **{kind: chart_of_lines(arms, lines, ("x", "y"), kind) for kind in KINDS},
        "curves": charts.curves(arms, curves(n), seeds, ("steps", "score"), [3000], fired),
        "panels": charts.panels(arms, layers, "steps", [3000], {"churn": [(0, 1000)]}),
        "points": chart_of_rows(arms, panels),
        "bars": chart_of_rows(arms, bars),
    }


@cache
def drawing(names: tuple[str, ...], kind: str) -> ET.Element:
    return ET.fromstring(svg(all_charts(names)[kind]))


def marks(names: tuple[str, ...], kind: str, colour: str) -> list[dict[str, str]]:
    """The attributes of what is drawn in a colour, but for the legend."""
    found = []
    for group in drawing(names, kind).iter():
        if "role-mark" in group.get("class", ""):
            found += [own.attrib for own in group.iter() if colour in own.attrib.values()]
    return found


def texts(names: tuple[str, ...], kind: str) -> list[str]:
    return [
        text
        for own in drawing(names, kind).iter()
        if (text := own.text) and own.tag.endswith("text")
    ]


def test_arms_differ_in_colour_or_line_and_the_baseline_is_grey():
    arms = arm_styles(MANY, MANY[3])
    assert [look.index for look in arms if look.colour == BASELINE] == [3]
    assert len({(look.colour, look.dash) for look in arms}) == len(MANY)
    assert len({(look.colour, look.shape) for look in arms}) == len(MANY)
    assert BASELINE not in [look.colour for look in arm_styles(MANY, None)]
    colours = [
        {look.name: look.colour for look in arm_styles(names, "none")}
        for names in (("none", "a", "b"), ("a", "b", "none"))
    ]
    assert colours[0] == colours[1]  # wherever the baseline stands


def test_labels_are_printable_and_differ():
    arms = arm_styles(("a\x00b", "a\x01b", "a\nb"), None)
    assert [look.name for look in arms] == ["a\x00b", "a\x01b", "a\nb"]
    assert [look.label for look in arms] == ["a\ufffdb", "a\ufffdb 2", "a\ufffdb 3"]


@every_kind
def test_every_arm_is_drawn_in_its_colour(kind: str):
    for look in arm_styles(NAMES, NAMES[0]):
        assert marks(NAMES, kind, look.colour)


@every_kind
def test_what_is_hidden_is_not_drawn(kind: str):
    spec = all_charts(NAMES)[kind]
    (shown,) = [own for own in spec["params"] if own["name"] == "shown"]
    others = [own for own in spec["params"] if own["name"] != "shown"]
    only = spec | {"params": [{**shown, "value": ["fire"]}, *others]}
    text = re.sub(r'<g class="mark-group role-legend.*', "", svg(only), flags=re.DOTALL)
    none, fire, reset = (look.colour in text for look in arm_styles(NAMES, NAMES[0]))
    assert (none, fire, reset) == (False, True, False)


@every_drawing
def test_files_name_every_arm_in_full(kind: str):
    assert set(MANY) <= set(texts(MANY, kind))


def test_curves_hold_the_numbers_given():
    data = all_charts(NAMES)["curves"]["datasets"]
    (own,) = [row for row in data["curves"] if row["arm"] == "full_reset"]
    assert own["x"] == XS.tolist()
    assert own["y"] == (XS * 3).tolist()
    assert (own["low"], own["high"]) == ((XS * 3 - 50).tolist(), (XS * 3 + 50).tolist())
    assert [(row["arm"], row["x"], row["what"]) for row in data["firings"]] == [
        ("fire", [1000], ["fire on q"]),
        ("full_reset", [2000], ["fire on q"]),
    ]
    assert [(row["arm"], row["seed"]) for row in data["seeds"]] == [("none", 1), ("none", 2)]


@pytest.mark.parametrize("side", [None, np.full(len(XS), np.nan)], ids=["none", "nan"])
def test_curve_without_an_interval_has_no_band(side: np.ndarray | None):
    arms = arm_styles(("none",), "none")
    drawn = [
        svg(charts.curves(arms, {0: Curve(XS, XS, low, low)}, {}, ("x", "y"), [], {}))
        for low in (side, XS)
    ]
    areas = [re.findall(r'<path aria-label[^>]*area mark[^>]*d="(M[^"]+)"', text) for text in drawn]
    assert [bool(found) for found in areas] == [False, True]


@pytest.mark.parametrize(("points", "symbols"), [(1, 1), (2, 0)])
def test_a_curve_of_one_point_is_drawn_as_a_point(points: int, symbols: int):
    arms, curve = arm_styles(("none",), "none"), Curve(XS[:points], XS[:points])
    text = svg(charts.curves(arms, {0: curve}, {}, ("x", "y"), [], {}))
    groups = re.findall(r'<g class="mark-symbol role-mark layer[^>]*>(.*?)</g>', text)
    assert sum(group.count('d="M') for group in groups) == symbols


def test_no_value_is_written_as_not_a_number():
    spec = charts.curves(
        arm_styles(("a",), None), {0: Curve(XS, XS * np.nan)}, {}, ("x", "y"), [], {}
    )
    assert spec["datasets"]["curves"][0]["y"] == [None] * len(XS)


def test_points_show_value_interval_and_seeds():
    (row,) = [r for r in all_charts(NAMES)["points"]["datasets"]["panel_0"] if r["arm"] == "fire"]
    assert row == {"arm": "fire", "value": 1, "low": 0.5, "high": 2, "seeds": [0, 3]}


def test_point_without_interval_has_no_line():
    alone = {0: Point(5.0, float("nan"), float("nan"))}
    text = svg(chart_of_rows(arm_styles(("none",), None), [Panel("a", "b", alone)]))
    assert "mark-symbol" in text
    assert not re.findall(r"<line [^>]*stroke-width=\"2.4\"", text)


def test_arm_without_a_number_has_no_row():
    spec = chart_of_rows(arm_styles(NAMES, "none"), [Panel("a", "b", {2: Point(1.0)})])
    found = re.findall(r">([a-z_]+)</text>", svg(spec))
    assert "full_reset" in found
    assert not {"none", "fire"} & set(found)


def ticks(panel: Panel) -> list[float]:
    text = svg(chart_of_rows(arm_styles(("a",), None), [panel]))
    return [float(found) for found in re.findall(r">(-?[\d.]+)</text>", text)]


def test_shares_have_an_axis_from_0_to_1_and_times_begin_at_0():
    near = ticks(Panel("p", "p", {0: Point(0.5, 0.48, 0.52)}, 0.5, "share"))
    assert (near[0], near[-1]) == (0, 1)
    times = ticks(Panel("t", "t", {0: Point(400.0, seeds=(300.0, 500.0))}, axis="zero"))
    assert times[0] == 0
    assert times[-1] >= 500


def test_bars_begin_at_0_and_their_shared_part_comes_first():
    (row,) = [r for r in all_charts(NAMES)["bars"]["datasets"]["panel_0"] if r["arm"] == "fire"]
    assert (row["shared"], row["end"]) == (2, 5)
    (colour,) = [look.colour for look in arm_styles(NAMES, "none") if look.name == "fire"]
    paths = [own["d"] for own in marks(NAMES, "bars", colour)]
    starts = sorted(float(re.match(r"M([\d.]+)", path)[1]) for path in paths)  # type: ignore[index]
    assert starts[0] == 0
    assert starts[1] == pytest.approx(230 * 2 / 5)


def test_a_metric_measured_of_layers_has_a_choice_of_them():
    spec = all_charts(NAMES)["panels"]
    (layer,) = [own for own in spec["params"] if own["name"] == "layer"]
    assert layer["bind"]["options"] == ["", "fc1"]
    assert layer["bind"]["labels"] == [charts.WHOLE, "fc1"]
    assert layer["value"] == ""
    alone = charts.panels(arm_styles(NAMES, None), {"a": {"": curves(3)}}, "x", [])
    assert "layer" not in [own["name"] for own in alone["params"]]


@pytest.mark.parametrize(("value", "label"), [(0.1, "0.1"), (2.0, "2"), (1234.5, "1235")])
def test_a_constant_is_labelled_with_its_value(value: float, label: str):
    flat = {0: Curve(XS, np.full(len(XS), value))}
    text = svg(charts.panels(arm_styles(("a",), None), {"m": {"": flat}}, "x", []))
    assert f">{label}</text>" in text


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (2e4, {"5k", "10k", "15k", "20k"}),
        (2e6, {"500k", "1M", "1.5M", "2M"}),
        (8e11, {"2e+11", "4e+11", "6e+11", "8e+11"}),
    ],
)
def test_axes_of_values_say_powers_of_ten_only_where_they_are_large(top: float, expected: set[str]):
    steep = {0: Curve(XS, np.linspace(0, top, len(XS)))}
    text = svg(charts.panels(arm_styles(("a",), None), {"m": {"": steep}}, "x", []))
    assert expected <= set(re.findall(r">([^<>]+)</text>", text))


@pytest.mark.parametrize("last", [0, 1, 4, 9])
def test_axes_of_steps_have_whole_numbers(last: int):
    few = np.arange(last + 1.0)
    arms, own = arm_styles(("a",), None), {0: Curve(few, few + 0.25)}
    lines = {"m": [Line(0, "end", few, few + 0.25)]}
    for spec in (
        charts.curves(arms, own, {}, ("steps", "score"), [], {}),
        charts.panels(arms, {"m": {"": own}}, "steps", []),
        chart_of_lines(arms, lines, ("steps", "score")),
    ):
        axis = re.search(r"aria-label=\"X-axis.*?role-axis-title", svg(spec), re.DOTALL)
        assert axis is not None
        found = re.findall(r">([^<>]+)</text>", axis[0])
        assert found and all(label.isdigit() for label in found), found


@every_drawing
def test_files_repeat_byte_for_byte_and_load_nothing(kind: str):
    spec = all_charts(NAMES)[kind]
    text = svg(spec)
    assert text == svg(spec)
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }
    picture = png(text)
    assert picture.startswith(b"\x89PNG")
    assert picture == png(text)


@pytest.mark.parametrize(
    "name", ['a\\"b', "a'b", "{a}", "a\x00b", "x\ud800", "</script>", "__proto__", "a.b[0]"]
)
def test_any_name_can_be_drawn(name: str):
    arms = arm_styles((name, "b"), None)
    drawn = {0: Curve(XS, XS), 1: Curve(XS, XS)}
    fired = {0: [Firing(0.0, name)]}
    for spec in (
        charts.curves(arms, drawn, {}, ("steps", name), [], fired),
        charts.panels(arms, {name: {"": drawn, name: drawn}}, "steps", []),
        chart_of_rows(arms, [Panel(name, name, {0: Point(1.0), 1: Point(2.0)})]),
        chart_of_lines(arms, {name: [Line(0, "end", XS, XS)]}, ("x", "y")),
    ):
        ET.fromstring(svg(spec))
