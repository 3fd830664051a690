"""Charts: that they are drawn, in whose colour, and that they hold the right numbers."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import vl_convert
from scipy.stats import binomtest

from rlplast.report import charts
from rlplast.report.arms import BASELINE, looks
from rlplast.report.contents import _printable, sections
from rlplast.report.frame import Results, read
from rlplast.report.view import Report, report_of
from tests.report.drawn import svg
from tests.report.runs import receipt_row, smooth_score, write_run, write_study

ARMS, SEEDS, TASK = ("none", "fire", "full_reset"), range(1, 6), "asterix"
XS = list(range(500, 6001, 500))
MANY = tuple(f"an arm with quite a long name {number}" for number in range(12))
HOSTILE = ('a\\"b', "a'b", "{a}", "a\x00b", "x\ud800", "</script>", "__proto__", "a.b[0]")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Three arms, five seeds, one task; one more seed that has not ended."""
    folder = tmp_path_factory.mktemp("plain")
    going = {(TASK, arm, 6): "running" for arm in ARMS}
    return report_of(read([write_study(folder, ARMS, range(1, 7), statuses=going)]))


def renamed(raw: Results, arms: Sequence[str], task: str, network: str) -> Results:
    """Results with other names, which no folder could have."""
    names = dict(zip(raw.arms, arms, strict=True))
    fired = {
        run: [row | {"network": network} for row in rows] for run, rows in raw.receipts.items()
    }
    numbers = raw.numbers.assign(
        name=raw.numbers.name.cat.rename_categories(lambda own: own.replace("/q", f"/{network}"))
    )
    runs = raw.runs.assign(arm=raw.runs.arm.replace(names), task=task)
    about = {"arms": tuple(arms), "tasks": (task,), "baseline": arms[0], "receipts": fired}
    return replace(raw, runs=runs, numbers=numbers, **about)


def compiled(report: Report, errors: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Name of each chart of a report → its .svg file; nothing is complained about."""
    found = {}
    for chart in (own for section in sections(report) for own in section.charts):
        spec = json.loads(json.dumps(_printable(chart.spec), allow_nan=False))
        text = vl_convert.vegalite_to_svg(
            spec, vl_version=charts.VERSION, config=charts.CONFIG, show_warnings=True
        )
        assert (chart.name, errors.readouterr().err) == (chart.name, "")
        ET.fromstring(text)
        inside = re.sub(r'<g class="mark-group role-legend.*', "", text, flags=re.DOTALL)
        drawn = {row.get("arm") for rows in chart.spec["datasets"].values() for row in rows}
        assert drawn - {None}
        for look in report.looks:
            assert (look.colour in inside) >= (look.label in drawn), (chart.name, look)
        found[chart.name] = text
    return found


def test_every_chart_of_a_report_is_drawn(plain: Report, capfd: pytest.CaptureFixture[str]):
    assert list(compiled(plain, capfd)) == [
        *("score-asterix", "curve-asterix", "improvement", "difference", "profile-asterix"),
        *("drop-asterix", "metrics-asterix-q", "cost"),
    ]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seeds": SEEDS}, HOSTILE),
        ({"key": "eval/loss"}, MANY[:4]),  # no intervals
        ({"total": 500, "branch": 500}, ("none",)),  # curves of one point
    ],
    ids=["hostile", "one seed", "one run"],
)
def test_whatever_arms_are_called_and_however_few_runs_there_are(
    changes: dict[str, Any], names: Sequence[str], tmp_path, capfd: pytest.CaptureFixture[str]
):
    arms = [f"arm{number}" for number in range(len(names))]
    raw = read([write_study(tmp_path, arms, **({"seeds": (1,)} | changes))])
    report = report_of(renamed(raw, names, 'a task\\"\n\u2028{}</script>', 'n\\"{'))
    found = compiled(report, capfd)
    (text,) = (own for name, own in found.items() if name.startswith("curve"))
    if len(names) > 1:
        assert {look.label for look in report.looks} <= {
            own.text for own in ET.fromstring(text).iter()
        }
    else:
        dots = re.findall(r'<g class="mark-symbol role-mark layer[^>]*>(.*?)</g>', text)
        assert sum(own.count('d="M') for own in dots) == 2  # a line of one point would not be seen


def test_files_name_each_of_many_arms_and_repeat_byte_for_byte_and_load_nothing():
    rows = [{"arm": arm, "x": [0, 1], "y": [n, 2]} for n, arm in enumerate(MANY)]
    spec = charts.lines(looks(MANY, None), {"curves": rows}, ("x", "y"))
    text = svg(spec)
    assert set(MANY) <= {own.text for own in ET.fromstring(text).iter()}
    assert text == svg(spec)
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {
        *("http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"),
    }


def test_arms_differ_in_colour_or_line_and_the_baseline_is_grey():
    arms = looks(MANY, MANY[3])
    assert [look.index for look in arms if look.colour == BASELINE] == [3]
    assert len({(look.colour, look.dash) for look in arms}) == len(MANY)
    assert len({(look.colour, look.shape) for look in arms}) == len(MANY)
    assert len({look.colour for look in looks(MANY[:6], None)}) == 6
    colours = [
        {look.name: look.colour for look in looks(names, "none")}
        for names in (("none", "fire", "swr"), ("swr", "none"), ("fire", "none"))
    ]
    assert colours[1].items() <= colours[0].items() >= colours[2].items()  # whoever else is there
    labels = [look.label for look in looks(("a\x00b", "a\x01b", "a\nb"), None)]
    assert labels == ["a\ufffdb", "a\ufffdb 2", "a\ufffdb 3"]


@pytest.mark.parametrize("kind", ["lines", "panels", "points", "bars"])
def test_arms_that_are_not_shown_are_not_drawn(kind: str):
    arms = looks(ARMS, "none")
    rows = [{"arm": arm, "x": [0, 1], "y": [n, 2], "layer": ""} for n, arm in enumerate(ARMS)]
    dots = [{"arm": arm, "value": 1, "low": 0, "high": 2, "seeds": [0, 2]} for arm in ARMS]
    bars = [{"arm": arm, "shared": 1, "end": 3, "own": 2} for arm in ARMS]
    spec = {
        "lines": lambda: charts.lines(arms, {"curves": rows}, ("x", "y")),
        "panels": lambda: charts.panels(arms, {"m": rows}, "x"),
        "points": lambda: charts.points(arms, [charts.Panel("a", "b", dots)]),
        "bars": lambda: charts.points(arms, [charts.Panel("a", "b", bars)]),
    }[kind]()
    for own in spec["params"]:
        own["value"] = ["fire"] if own["name"] == "shown" else own.get("value")
    text = re.sub(r'<g class="mark-group role-legend.*', "", svg(spec), flags=re.DOTALL)
    assert [look.colour in text for look in arms] == [False, True, False]


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
    for kind, seeds in (("seeds", [*SEEDS]), ("running", [6])):
        assert [(row["arm"], row["seed"]) for row in data[kind]] == [
            (arm, seed) for arm in ARMS for seed in seeds
        ]
        for row in data[kind]:
            own = [smooth_score(TASK, row["arm"], row["seed"], x) for x in row["x"]]
            assert row["y"] == pytest.approx(own, rel=1e-4)
    for row in data["curves"]:
        assert row["x"] == row["env_steps"] == XS
        assert row["updates"] == [x / 2 for x in XS] and row["seconds"] == [x / 100 for x in XS]
    assert spec["usermeta"] == {"x": "env steps", "axes": ["env_steps", "updates", "seconds"]}
    assert [{"x": 3000}] in data.values()  # the branch


def test_an_axis_that_not_all_curves_have_cannot_be_chosen(plain: Report):
    numbers, runs = plain.results.numbers, plain.results.of(TASK, "full_reset").index
    gone = (numbers.name == "time/seconds") & numbers.run.isin(runs)
    report = replace(plain, results=replace(plain.results, numbers=numbers[~gone]))
    assert charts.curves(report, TASK).spec["usermeta"]["axes"] == ["env_steps", "updates"]


def test_long_curves_keep_both_ends(plain: Report, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charts, "POINTS", 10)
    monkeypatch.setattr(charts, "PANEL_POINTS", 4)
    (panels,) = charts.metrics(plain)
    for row in panels.spec["datasets"]["curves"]:
        assert (len(row["x"]), row["x"][0], row["x"][-1]) == (4, 500, 6000)
        assert row["y"] in ([0.1] * 4, [5 + x / 1000 for x in row["x"]])


@pytest.mark.parametrize("count", [charts.MARKS, charts.MARKS + 1])
def test_each_firing_has_a_mark_unless_there_are_many(count: int, plain: Report):
    results, often = plain.results, range(100, 100 * count + 1, 100)
    receipts = dict(results.receipts)
    for run in results.of(TASK, "fire").index:
        rows = [receipt_row("fire", x, network) for x in often for network in ("q", "target")]
        receipts[run] = [*rows, receipt_row("swr", 50, norm=None)]  # one after each update
    for run in results.of(TASK, "full_reset").index[1:]:
        receipts[run] = []
    report = replace(plain, results=replace(results, receipts=receipts))
    fire, reset = charts.curves(report, TASK).spec["datasets"]["firings"]
    assert (reset["arm"], reset["x"]) == ("full_reset", [3000])
    assert (fire["arm"], fire["row"], reset["row"]) == ("fire", 0, 1)
    if count == charts.MARKS:
        assert (fire["x"], set(fire["what"])) == ([*often], {"fire on q, fire on target"})
        assert "bar" not in fire
    else:
        assert fire["x"] == [100, 100 * count] and fire["bar"] is True
        assert all(f"{count} times" in words for words in fire["what"])
        bar = rf'line mark[^>]*d="M[^"]*"[^>]*stroke="{plain.looks[1].colour}"[^>]*stroke-width="2"'
        assert re.search(bar, svg(charts.curves(report, TASK).spec))


def test_runs_on_tasks_of_one_length_are_drawn_over_the_tasks_done(tmp_path):
    for arm in ("none", "reset"):
        rows = [{"updates": k, "epochs": 5 * k, "eval/accuracy": k / 9} for k in range(1, 5)]
        clock = {"updates": 2, "epochs": 10, "phase": 2}
        fired = [receipt_row("full_reset", 0, "model") | {"clock": clock}] * (arm != "none")
        config = {"kind": "supervised", "total": "auto", "data": {"name": "digits"}, "env": None}
        config |= {"stream": {"name": "random_labels", "phases": 4, "epochs": 5}}
        hooks = [{"method": "full_reset", "on": "phase_start"}] * (arm != "none")
        write_run(tmp_path / arm, rows, fired, config | {"hooks": hooks})
    report = report_of(read([tmp_path]))
    spec = charts.curves(report, report.tasks[0]).spec
    assert spec["usermeta"] == {"x": "tasks done", "axes": ["updates"]}
    assert [row["x"] for row in spec["datasets"]["curves"]] == [[1, 2, 3, 4]] * 2
    assert [row["x"] for row in spec["datasets"]["firings"]] == [[2]]


@pytest.mark.parametrize("key", ["eval/return_mean", "eval/loss"])
def test_final_scores_and_profiles_are_those_of_the_runs(key: str, tmp_path):
    report = report_of(read([write_study(tmp_path, ARMS, SEEDS, key=key)]))
    better = key == "eval/return_mean"
    finals = {arm: [final(arm, seed) for seed in SEEDS] for arm in ARMS}
    order = sorted(ARMS, key=lambda arm: sum(finals[arm]), reverse=better)
    chart = charts.ranking(report, TASK)
    assert chart is not None
    rows = chart.spec["datasets"]["panel_0"]
    assert [row["arm"] for row in rows] == order
    for row in rows:
        assert row["seeds"] == pytest.approx(finals[row["arm"]], rel=1e-4)
        assert row["value"] == pytest.approx(sum(sorted(finals[row["arm"]])[1:-1]) / 3, rel=1e-4)
    (profile,) = charts.profiles(report)
    for row in profile.spec["datasets"]["curves"]:
        own, shares = (
            finals[row["arm"]],
            zip(row["x"], row["y"], row["low"], row["high"], strict=True),
        )
        for x, share, low, high in list(shares)[1:-1]:  # the ends are rounded runs
            won = sum((score >= x) if better else (score <= x) for score in own)
            wilson = binomtest(won, len(own)).proportion_ci(method="wilson")
            assert share == won / len(own)
            assert (low, high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)


def test_differences_drops_and_costs_are_those_of_the_seeds(plain: Report):
    improvement, difference = charts.comparison(plain)
    assert [row["arm"] for row in improvement.spec["datasets"]["panel_0"]] == ["fire", "full_reset"]
    for row in difference.spec["datasets"]["panel_0"]:
        apart = [final(row["arm"], seed) - final("none", seed) for seed in SEEDS]
        assert row["seeds"] == pytest.approx(apart, rel=1e-3)
    (drops,) = charts.drops(plain)
    rows = {row["arm"]: row for row in drops.spec["datasets"]["panel_0"]}
    for arm in ARMS:  # each fires at 3000, after what was measured at 2500
        lost = [smooth_score(TASK, arm, s, 2500) - smooth_score(TASK, arm, s, 3000) for s in SEEDS]
        assert rows[arm]["seeds"] == pytest.approx(lost, rel=1e-3)
    (cost,) = charts.costs(plain)
    bar = {"shared": 30, "end": 60, "own": 30}
    assert cost.spec["datasets"]["panel_0"] == [{"arm": arm} | bar for arm in ARMS]
    seconds = {name: plain.summary.rows[name] * 120 for name in ("seconds", "own_seconds")}
    longer = replace(plain.summary, rows=plain.summary.rows.assign(**seconds))
    (cost,) = charts.costs(replace(plain, summary=longer))
    assert cost.spec["datasets"]["panel_0"][0] == {
        "arm": "none",
        "shared": 60,
        "end": 120,
        "own": 60,
    }
    assert "minutes per run" in json.dumps(cost.spec)


def test_metrics_of_networks_of_one_tensor_are_left_out(tmp_path):
    metric = "metric/weight_norm/"
    rows = [
        {"updates": x, "env_steps": x, "eval/return_mean": 1.0}
        | {f"{metric}actor": 2.0, f"{metric}actor/a": 1.0, f"{metric}actor/b": 1.0}
        | {f"{metric}alpha": 3.0, f"{metric}alpha/log": 3.0, "metric/srank/actor/fc": x}
        | {"metric/srank/actor": None if x == 500 else x}
        for x in (500, 6000)
    ]
    report = report_of(read([write_run(tmp_path / "run", rows)]))
    (chart,) = charts.metrics(report)
    curves = chart.spec["datasets"]["curves"]
    assert chart.name.endswith("-actor")
    assert [(row["layer"], row["x"], row["y"]) for row in curves] == [
        ("", [6000], [6000]),
        ("fc", [500, 6000], [500, 6000]),
        *((layer, [500, 6000], [y, y]) for layer, y in (("", 2), ("a", 1), ("b", 1))),
    ]
    (layer,) = [own for own in chart.spec["params"] if own["name"] == "layer"]
    assert layer["bind"]["options"] == ["", "a", "b", "fc"]
    assert layer["bind"]["labels"] == [charts.WHOLE, "a", "b", "fc"]


# --- axes ---


def texts(spec: charts.Spec, axis: str = "X") -> list[str]:
    found = re.search(rf"aria-label=\"{axis}-axis.*?role-axis-title", svg(spec), re.DOTALL)
    return re.findall(r">([^<>]+)</text>", found[0]) if found else []


def curve(ys: Sequence[float], xs: Sequence[float] | None = None) -> dict[str, Any]:
    return {"arm": "a", "x": list(range(len(ys)) if xs is None else xs), "y": list(ys), "layer": ""}


def test_shares_have_an_axis_from_0_to_1_and_times_begin_at_0():
    for axis, value, first in (("share", 0.5, "0.0"), ("zero", 400, "0"), ("free", 400, "390")):
        row = {"arm": "a", "value": value, "low": value * 0.98, "high": value * 1.02, "seeds": []}
        panel = charts.Panel("p", "p", [row], None, axis)
        shown = texts(charts.points(looks(("a",), None), [panel]))
        assert shown[0] == first
        assert shown[-1] == "1.0" if axis == "share" else float(shown[-1]) >= value


@pytest.mark.parametrize("last", [0, 1, 4, 9])
def test_axes_of_steps_have_whole_numbers(last: int):
    arms, own = looks(("a",), None), curve([k + 0.25 for k in range(last + 1)])
    for spec in (
        charts.lines(arms, {"curves": [own]}, ("steps", "y")),
        charts.panels(arms, {"m": [own]}, "steps"),
    ):
        found = texts(spec)
        assert found and all(label.isdigit() for label in found), found


@pytest.mark.parametrize(
    ("ys", "expected"),
    [
        ([0.1] * 2, {"0.1"}),  # of a constant its value
        ([1234.5] * 2, {"1235"}),
        ([0, 2e4], {"0", "10k", "20k"}),
        ([0, 2e6], {"500k", "1M", "1.5M", "2M"}),
        ([0, 8e11], {"2e+11", "4e+11", "6e+11", "8e+11"}),
    ],
)
def test_axes_of_values_are_short(ys: list[float], expected: set[str]):
    spec = charts.panels(looks(("a",), None), {"m": [curve(ys)]}, "x")
    assert expected <= set(re.findall(r">([^<>]+)</text>", svg(spec)))


def test_intervals_are_drawn_where_there_are_any_and_cut_where_no_seed_has_been():
    arms = looks(("a",), None)
    wide = curve([1, 2, 3]) | {"low": [-90, -90, None], "high": [90, 90, None]}
    thin = curve([0, 2, 4]) | {"seed": 1}
    areas = [
        re.findall(
            r'<path aria-label[^>]*area mark[^>]*d="(M[^"]+)"',
            svg(charts.lines(arms, data, ("x", "y"))),
        )
        for data in ({"curves": [curve([1, 2, 3])]}, {"curves": [wide], "seeds": [thin]})
    ]
    assert (len(areas[0]), len(areas[1])) == (0, 1)
    heights = [float(y) for y in re.findall(r"[ML][\d.-]+,([\d.-]+)", areas[1][0])]
    assert (min(heights), max(heights)) == (0, 300)  # from 0 to 4: the whole chart


def test_small_charts_are_grey_where_they_are_shaded():
    spec = charts.panels(looks(("a",), None), {"m": [curve([1] * 11)]}, "x", (), {"m": [(2, 4)]})
    (box,) = re.findall(
        r'opacity="0.08"[^>]*d="M([\d.]+),[^"]*"|d="M([\d.]+),[^"]*"[^>]*opacity="0.08"', svg(spec)
    )
    assert box
