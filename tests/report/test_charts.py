"""Charts: that they are drawn, in whose colour, and that they hold the right numbers."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from scipy.stats import binomtest

from rlplast.report import charts, vega
from rlplast.report.arms import looks
from rlplast.report.contents import sections
from rlplast.report.frame import Results, read
from rlplast.report.view import Report, report_of
from tests.report.drawn import svg
from tests.report.runs import receipt_row, smooth_score, write_run, write_study

ARMS, SEEDS, TASK = ("none", "fire", "full_reset"), range(1, 6), "asterix"
XS = list(range(500, 6001, 500))
MANY = tuple(f"an arm with quite a long name {number}" for number in range(12))
HOSTILE = ('a"b', "a'b", "{a}", "</script>", "__proto__", "a.b[0]")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Three arms, five seeds, one task; one more seed that has not ended."""
    folder = tmp_path_factory.mktemp("plain")
    going = {(TASK, arm, 6): "running" for arm in ARMS}
    return report_of(read([write_study(folder, ARMS, range(1, 7), statuses=going)]))


def renamed(raw: Results, arms: Sequence[str], task: str) -> Results:
    """Results with other names, which no folder could have."""
    arm = raw.runs.arm.replace(dict(zip(raw.arms, arms, strict=True)))
    runs = raw.runs.assign(arm=arm, task=task)
    return replace(raw, arms=tuple(arms), tasks=(task,), baseline=arms[0], runs=runs)


def inside(text: str) -> str:
    """A picture without its legend."""
    return re.sub(r'<g class="mark-group role-legend.*', "", text, flags=re.DOTALL)


def compiled(report: Report, errors: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Name of each chart of a report → its .svg file; nothing is complained about."""
    found = {}
    for chart in (own for section in sections(report) for own in section.charts):
        spec = json.loads(json.dumps(chart.spec, allow_nan=False))
        known = {"vl_version": vega.VERSION, "config": vega.CONFIG, "show_warnings": True}
        text = found[chart.name] = vl_convert.vegalite_to_svg(spec, **known)
        assert (chart.name, errors.readouterr().err) == (chart.name, "")
        rows = [row for own in chart.spec["datasets"].values() for row in own if "arm" in row]
        drawn = {row["arm"] for row in rows}
        assert drawn and ET.fromstring(text) is not None
        for look in report.looks:
            assert (look.colour in inside(text)) >= (look.name in drawn), (chart.name, look)
    return found


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        (HOSTILE, {"seeds": SEEDS}),
        (("none",), {"total": 500, "branch": 500}),  # curves of one point
    ],
    ids=["hostile", "one run"],
)
def test_charts_are_drawn_whatever_arms_are_called_and_however_few_runs_there_are(
    names: Sequence[str], changes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    arms = [f"arm{number}" for number in range(len(names))]
    raw = read([write_study(tmp_path, arms, **({"seeds": (1,)} | changes))])
    report = report_of(renamed(raw, names, 'a "task" {}</script>'))
    found = {name.partition("-")[0]: text for name, text in compiled(report, capfd).items()}
    text = found["curve"]
    if len(names) > 1:
        assert list(found) == ["score", "curve", "profile", "metrics"]
        assert set(names) <= {own.text for own in ET.fromstring(text).iter()}
    else:
        dots = re.findall(r'<g class="mark-symbol role-mark layer[^>]*>(.*?)</g>', text)
        assert sum(own.count('d="M') for own in dots) == 2  # also the curve: no line is seen


def test_files_name_each_of_many_arms_repeat_byte_for_byte_and_load_nothing():
    rows = [{"arm": arm, "x": [0, 1], "y": [n, 2]} for n, arm in enumerate(MANY)]
    spec = vega.lines(looks(MANY, None), {"curves": rows}, ("x", "y"))
    text = svg(spec)
    assert set(MANY) <= {own.text for own in ET.fromstring(text).iter()}
    assert text == svg(spec)
    assert set(re.findall(r"https?://([^/\"'\s<]+)", text)) == {"www.w3.org"}  # a format's name


def test_arms_that_are_not_shown_are_not_drawn(plain: Report):
    found = [charts.ranking(plain, TASK), charts.curves(plain, TASK)]
    for chart in (*found, *charts.metrics(plain)):
        assert chart is not None
        (shown,) = (own for own in chart.spec["params"] if own["name"] == "shown")
        rest = [own for own in chart.spec["params"] if own["name"] != "shown"]
        text = inside(svg(chart.spec | {"params": [shown | {"value": ["fire"]}, *rest]}))
        assert [look.colour in text for look in plain.looks] == [False, True, False]


# --- numbers ---


def final(arm: str, seed: int) -> float:
    """The mean in the last tenth of a run."""
    return sum(smooth_score(TASK, arm, seed, x) for x in (5500, 6000)) / 2


def test_curves_are_interquartile_means_of_seeds_over_every_axis(plain: Report):
    spec = charts.curves(plain, TASK).spec
    data = spec["datasets"]
    assert [row["arm"] for row in data["curves"]] == list(ARMS)
    for row in data["curves"]:
        for x, y, low, high in zip(row["x"], row["y"], row["low"], row["high"], strict=True):
            inner = sorted(smooth_score(TASK, row["arm"], seed, x) for seed in SEEDS)[1:-1]
            assert y == pytest.approx(sum(inner) / 3, rel=1e-4)
            assert low < y < high
        assert row["x"] == XS and "env_steps" not in row
        assert row["updates"] == [x / 2 for x in XS] and row["seconds"] == [x / 100 for x in XS]
    for kind, seeds in (("seeds", [*SEEDS]), ("running", [6])):
        whose = [(row["arm"], row["seed"]) for row in data[kind]]
        assert whose == [(arm, seed) for arm in ARMS for seed in seeds]
        for row in data[kind]:
            own = [smooth_score(TASK, row["arm"], row["seed"], x) for x in row["x"]]
            assert row["x"] == XS and row["y"] == pytest.approx(own, rel=1e-4)
    assert [{"x": 3000}] in data.values()  # the branch
    assert spec["usermeta"] == {"x": "env steps", "axes": ["updates", "seconds"]}
    numbers, runs = plain.results.numbers, plain.results.of(TASK, "full_reset").index
    gone = (numbers.name == "time/seconds") & numbers.run.isin(runs)
    report = replace(plain, results=replace(plain.results, numbers=numbers[~gone]))
    assert charts.curves(report, TASK).spec["usermeta"]["axes"] == ["updates"]


def test_long_curves_keep_both_ends(plain: Report, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charts, "PANEL_POINTS", 4)
    (panels,) = charts.metrics(plain)
    for row in panels.spec["datasets"]["curves"]:
        assert (len(row["x"]), row["x"][0], row["x"][-1]) == (4, 500, 6000)
        assert row["y"] in ([0.1] * 4, [5 + x / 1000 for x in row["x"]])


def test_each_scheduled_firing_has_a_mark_unless_there_are_many(plain: Report):
    results = plain.results
    receipts = dict(results.receipts)
    for run in results.of(TASK, "fire").index:
        rows = [receipt_row("fire", x, network) for x in (100, 200) for network in ("q", "target")]
        receipts[run] = [*rows, receipt_row("swr", 50, norm=None)]  # one after each update
    first, *others = results.of(TASK, "full_reset").index
    receipts[first] = [receipt_row("full_reset", 10 * x) for x in range(1, 3 * charts.MARKS)]
    receipts |= {run: [] for run in others}
    report = replace(plain, results=replace(results, receipts=receipts))
    fire, reset = charts.curves(report, TASK).spec["datasets"]["firings"]
    assert (fire["arm"], fire["row"], reset["row"]) == ("fire", 0, 1)
    assert (fire["x"], set(fire["what"])) == ([100, 200], {"fire on q, fire on target"})
    assert (reset["arm"], len(reset["x"])) == ("full_reset", charts.MARKS)
    assert (reset["x"][0], reset["x"][-1]) == (10, 30 * charts.MARKS - 10)


@pytest.mark.parametrize("key", ["eval/return_mean", "eval/loss"])
def test_final_scores_and_profiles_are_those_of_the_runs(key: str, tmp_path: Path):
    report = report_of(read([write_study(tmp_path, ARMS, SEEDS, key=key)]))
    higher, finals = key != "eval/loss", {arm: [final(arm, s) for s in SEEDS] for arm in ARMS}
    chart = charts.ranking(report, TASK)
    assert chart is not None
    rows = chart.spec["datasets"]["points"]
    best_first = sorted(ARMS, key=lambda arm: sum(finals[arm]), reverse=higher)
    assert [row["arm"] for row in rows] == best_first
    for row in rows:
        own = finals[row["arm"]]
        assert row["seeds"] == pytest.approx(own, rel=1e-4)
        assert row["value"] == pytest.approx(sum(sorted(own)[1:-1]) / 3, rel=1e-4)
    (profile,) = charts.profiles(report)
    for row in profile.spec["datasets"]["curves"]:
        shares = list(zip(row["x"], row["y"], row["low"], row["high"], strict=True))
        for x, *found in shares[1:-1]:  # at the ends are runs, and x are rounded
            own = finals[row["arm"]]
            won = sum((score >= x) if higher else (score <= x) for score in own)
            wilson = binomtest(won, len(own)).proportion_ci(method="wilson")
            assert found == pytest.approx([won / len(own), wilson.low, wilson.high], abs=1e-4)


def test_a_profile_of_one_of_several_tasks_is_in_its_raw_scores(tmp_path: Path):
    report = report_of(read([write_study(tmp_path, ARMS, SEEDS, tasks=("asterix", "breakout"))]))
    finals = report.results.done.groupby("task").final
    for chart in list(charts.profiles(report))[-2:]:
        xs = chart.spec["datasets"]["curves"][0]["x"]
        own = finals.get_group(chart.title)
        assert [xs[0], xs[-1]] == pytest.approx([own.min(), own.max()], rel=1e-4)


def test_metrics_are_of_layers_too_but_not_of_networks_of_one_tensor(tmp_path: Path):
    rows = [
        {"updates": x, "env_steps": x, "eval/return_mean": 1.0, "metric/srank/actor/fc": x}
        | {f"metric/weight_norm/actor{own}": 1.0 for own in ("", "/a", "/b")}
        | {f"metric/weight_norm/alpha{own}": 3.0 for own in ("", "/log")}
        | {"metric/srank/actor": None if x == 500 else x}
        for x in (500, 6000)
    ]
    (chart,) = charts.metrics(report_of(read([write_run(tmp_path / "run", rows)])))
    assert chart.name.endswith("-actor")
    found = [(row["layer"], row["x"], row["y"]) for row in chart.spec["datasets"]["curves"]]
    assert found == [
        ("", [6000], [6000]),
        ("fc", [500, 6000], [500, 6000]),
        *((layer, [500, 6000], [1, 1]) for layer in ("", "a", "b")),
    ]
    (layer,) = (own["bind"] for own in chart.spec["params"] if own["name"] == "layer")
    assert layer["options"] == ["", "a", "b", "fc"]
    assert layer["labels"] == [vega.WHOLE, "a", "b", "fc"]


# --- axes ---


def ticks(spec: vega.Spec) -> list[str]:
    """What the x axis says, but for its title."""
    (axis,) = re.findall(r"aria-label=\"X-axis.*?role-axis-title", svg(spec), re.DOTALL)
    return re.findall(r">([^<>]+)</text>", axis)


def curve(*ys: float) -> dict[str, Any]:
    return {"arm": "a", "x": list(range(len(ys))), "y": list(ys), "layer": ""}


LOOKS = looks(("a",), None)


@pytest.mark.parametrize("last", [0, 4])
def test_axes_of_steps_have_whole_numbers(last: int):
    own = curve(*(k + 0.25 for k in range(last + 1)))
    found = ticks(vega.lines(LOOKS, {"curves": [own]}, ("steps", "y")))
    assert found and all(label.isdigit() for label in found), found


def test_axes_of_values_are_short():
    expected = {"0.1", "500k", "1M", "1.5M", "2M", "2e+11", "4e+11", "6e+11", "8e+11"}
    panels = {"constant": curve(0.1, 0.1), "large": curve(0, 2e6), "huge": curve(0, 8e11)}
    text = svg(vega.panels(LOOKS, {title: [own] for title, own in panels.items()}, "x"))
    assert expected <= set(re.findall(r">([^<>]+)</text>", text))


def test_intervals_are_drawn_where_there_are_any_and_cut_where_no_seed_has_been():
    wide = curve(1, 2, 3) | {"low": [-90, -90, None], "high": [90, 90, None]}
    for data in ({"curves": [curve(1, 2, 3)]}, {"curves": [wide], "seeds": [curve(0, 2, 4)]}):
        text = svg(vega.lines(LOOKS, data, ("x", "y")))
        areas = re.findall(r'<path aria-label[^>]*area mark[^>]*d="(M[^"]+)"', text)
        assert len(areas) == ("seeds" in data)
    heights = [float(y) for y in re.findall(r"[ML][\d.-]+,([\d.-]+)", areas[0])]
    assert (min(heights), max(heights)) == (0, 300)  # from 0 to 4: the whole chart
