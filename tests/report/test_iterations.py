"""Iterations: champions, trajectories and densities, of runs by hand with known numbers."""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.report.closeups import plane_of
from rlplast.report.contents import sections, write_report
from rlplast.report.gather import gather
from rlplast.report.lines import Line, chart_of_lines, outline
from rlplast.report.page import Chart
from rlplast.report.run_data import RunData, read_run
from rlplast.report.stretches import (
    Stretch,
    champion,
    iterations,
    last_density,
    numbers_of,
    path_of,
    starts_at_initial,
    stretches,
)
from rlplast.report.summary import summarise
from rlplast.report.vega import Spec
from rlplast.report.view import Report
from tests.report.drawn import svg
from tests.report.runs import receipt_row, write_run
from tests.report.test_page import Page

EPOCHS, PHASES = 4, 3
# By iteration, then by epoch of it. Iteration 0 has the best of all; iteration 2 is the champion.
ACCURACY = ((0.5, 0.9, 0.9, 0.6), (0.5, 0.6, 0.7, 0.6), (0.6, 0.8, 0.7, 0.8))
REPEATED = {"name": "repeated", "phases": PHASES, "epochs": EPOCHS}
HISTOGRAM, SKETCH = "metric/activation_histogram/model", "metric/weight_sketch/model"
LAYERS = "metric/saturation_percentile/model"


def lines(score: Callable[[float], float] = lambda value: value) -> list[dict[str, Any]]:
    """Lines of a classifier; its weights go along axis `phase`, to `epoch` of it and aside."""
    rows = []
    for phase in range(PHASES):
        for epoch in range(1, EPOCHS + 1):
            whole = phase * EPOCHS + epoch
            clock = {"updates": 10 * whole, "epochs": whole, "phase": phase}
            place = np.zeros(5)
            place[phase] = epoch
            found: dict[str, float] = {f"{SKETCH}/{i}": v for i, v in enumerate(place)}
            found |= {f"{HISTOGRAM}/low": -1.0, f"{HISTOGRAM}/high": 1.0}
            found |= {f"{HISTOGRAM}/0": whole / 100, f"{HISTOGRAM}/1": 1 - whole / 100}
            found |= {LAYERS: 0.1, f"{LAYERS}/fc1": float(whole), f"{LAYERS}/fc2": 0.3}
            value = score(ACCURACY[phase][epoch - 1])
            rows.append(clock | found)
            rows.append(clock | {"eval/accuracy": value, "eval/test_accuracy": value - 0.1})
    return rows


def fired(method: str, phase: int, epochs: int, updates: int | None = None) -> dict[str, Any]:
    """A receipt of a hook."""
    clock = {"epochs": epochs, "phase": phase}
    clock["updates"] = 10 * epochs if updates is None else updates
    return receipt_row(method, 0, "model") | {"clock": clock}


def run_of(
    folder: Path,
    rows: list[dict[str, Any]],
    receipts: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> RunData:
    config = {"kind": "supervised", "total": "auto", "data": {"name": "digits"}}
    config |= {"stream": REPEATED} | changes
    return read_run(write_run(folder, rows, receipts, config), "digits", "none", 1)


def report_of(folder: Path, stream: dict[str, Any] | None = None) -> Report:
    """Two arms of two seeds; the second one starts again at θ0 and is a tenth less accurate."""
    for seed in (1, 2):
        for arm, less in (("none", 0.0), ("persistent", 0.1)):
            hooks = [] if arm == "none" else [{"method": arm, "on": "phase_start"}]
            config = {"kind": "supervised", "total": "auto", "seed": seed, "hooks": hooks}
            config |= {"data": {"name": "digits"}, "stream": stream or REPEATED}
            own = folder / f"{arm}-{seed}"
            receipts = [fired(arm, phase, phase * EPOCHS) for phase in (1, 2) if hooks]
            write_run(own, lines(lambda value, less=less: value - less), receipts, config)
    found = gather([folder])
    return Report(found, summarise(found))


def charts_of(report: Report) -> dict[str, Chart]:
    parts = (part for section in sections(report) for part in section.parts)
    return {part.name: part for part in parts if isinstance(part, Chart)}


def named(report: Report, start: str) -> Chart:
    (chart,) = [own for name, own in charts_of(report).items() if name.startswith(start)]
    return chart


def test_the_champion_is_the_best_iteration_but_the_plain_one(tmp_path: Path):
    run = run_of(tmp_path / "run", lines())
    assert {n: row["epochs"] for n, row in iterations(run).items()} == {0: 2, 1: 7, 2: 10}
    assert champion(run) == 2
    assert stretches(run) == [Stretch("iteration 0", 0), Stretch("champion", 2)]
    rows = [{k.replace("accuracy", "loss"): v for k, v in row.items()} for row in lines()]
    worst = run_of(tmp_path / "loss", rows)  # of a loss the smallest is the best
    assert champion(worst) == 1


def test_runs_without_iterations_have_no_champion_and_are_seen_whole(tmp_path: Path):
    run = run_of(tmp_path / "run", lines(), stream={"name": "warm_start", "phases": 3, "epochs": 4})
    assert iterations(run) == {} and champion(run) is None
    (end,) = stretches(run)
    assert end.phase is None
    assert path_of(run, end, SKETCH).shape == (12, 5)
    density = last_density(run, end, HISTOGRAM)
    assert density is not None and density[1].tolist() == pytest.approx([0.12, 0.88])


def test_densities_and_paths_are_those_of_the_moment(tmp_path: Path):
    run = run_of(tmp_path / "run", lines())
    first, best = stretches(run)
    for stretch, epochs in ((first, 4), (best, 12)):
        density = last_density(run, stretch, HISTOGRAM)
        assert density is not None
        assert density[0].tolist() == [-1, 0, 1]
        assert density[1].tolist() == pytest.approx([epochs / 100, 1 - epochs / 100])
    assert path_of(run, best, SKETCH)[:, 2].tolist() == [1, 2, 3, 4]
    rows = [row for row in lines() if row.get(f"{HISTOGRAM}/0") is None or row["epochs"] == 10]
    seldom = run_of(tmp_path / "seldom", rows)  # measured once, in the champion
    assert last_density(seldom, first, HISTOGRAM) is None
    density = last_density(seldom, best, HISTOGRAM)
    assert density is not None and density[1][0] == pytest.approx(0.1)
    assert last_density(run, best, "metric/hessian_density/model") is None


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_what_is_not_finite_is_not_drawn(bad: float | None):
    assert numbers_of({"a/0": 1.0, "a/1": bad, "a/2": 2.0}, "a") is None
    assert numbers_of({"a/low": 1.0}, "a") is None
    own = numbers_of({"a/0": 1.0, "a/1": 2.0, "a/low": 0.0, "a/3": 4.0}, "a")
    assert own is not None and own.tolist() == [1, 2]


def test_the_plane_is_that_of_the_two_paths():
    """Paths along two turned axes lie on their plane; a path across it is a known share."""
    turned = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 3)))[0].T
    steps = np.arange(1.0, 5.0)[:, None]
    paths = [steps * turned[0], -steps * turned[1]]
    plane, share = plane_of(paths)
    assert share == pytest.approx(1)
    np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
    flat = [path @ plane for path in paths]
    for path, own in zip(paths, flat, strict=True):
        np.testing.assert_allclose(np.linalg.norm(own, axis=1), np.linalg.norm(path, axis=1))
    assert flat[0][-1, 0] >= 0 and flat[1][-1, 1] >= 0
    aside = 0.5 * steps * turned[2]
    assert plane_of([*paths, aside])[1] == pytest.approx(2 / 2.25)


@pytest.mark.parametrize("points", [np.zeros((1, 4)), np.array([[0.0, 3.0, 4.0]])])
def test_a_single_point_has_a_plane_too(points: np.ndarray):
    plane, share = plane_of([points])
    assert plane.shape == (points.shape[1], 2)
    assert share == pytest.approx(1)
    assert np.linalg.norm(points @ plane) == pytest.approx(np.linalg.norm(points))


@pytest.mark.usefixtures("quick")
def test_the_page_names_the_champion_in_table_and_captions(tmp_path: Path):
    report = report_of(tmp_path)
    page = Page(write_report(report.gathered, report.summary, tmp_path / "out").read_text())
    (table,) = [rows for _, rows in page.tables if "champion: iteration" in rows[0]]
    numbers = ["0.900", "0.800", "2", "2", "0.800", "0.700"]
    lower = ["0.800", "0.700", "2", "2", "0.700", "0.600"]
    arm = report.arms[1].name
    assert table[1:] == [
        ["none", "1", *numbers],
        ["none", "2", *numbers],
        [arm, "1", *lower],
        [arm, "2", *lower],
    ]
    caption = named(report, "layers-").caption
    assert f"Champion's iteration, by seed: arm none: 2, 2; arm {arm}: 2, 2." in caption
    assert "Arms that share iteration 0 have one dashed line." in caption


def test_charts_show_iteration_0_and_the_champion(tmp_path: Path):
    report = report_of(tmp_path)
    plane = named(report, "trajectories-")
    rows = [row for row in plane.spec["datasets"]["lines"] if row["arm"] == "none"]
    assert [row["stretch"] for row in rows] == ["iteration 0", "champion"]
    for row, expected in zip(rows, ([0, 1, 2, 3, 4], [1, 2, 3, 4]), strict=True):
        sizes = np.hypot(row["x"], row["y"])  # nothing sets the weights of `none` to θ0 again
        assert sizes.tolist() == pytest.approx(expected, abs=1e-3)
    again = [row for row in plane.spec["datasets"]["lines"] if row["arm"] != "none"]
    assert [(row["x"][0], row["y"][0], len(row["x"])) for row in again] == [(0, 0, 5)] * 2
    assert "standard error is 32%" in plane.caption  # 1/√(2·5)
    other = report.arms[1].label
    assert f"(arm none: 100%, arm {other}: 100%)" in plane.caption
    assert "first seed" in plane.caption
    layers = named(report, "layers-").spec
    titles = [panel["title"] for panel in layers["concat"]]
    assert titles == ["all layers", "fc1", "fc2"]
    own = [row for row in layers["datasets"]["lines"] if row["arm"] == "none" and row["panel"] == 1]
    assert [(row["stretch"], row["x"], row["y"]) for row in own] == [
        ("iteration 0", [1, 2, 3, 4], [1, 2, 3, 4]),
        ("champion", [1, 2, 3, 4], [9, 10, 11, 12]),
    ]
    histogram = named(report, "activation-histogram-").spec
    assert [panel["title"] for panel in histogram["concat"]] == [
        f"{look.name}, champion: iteration 2" for look in report.arms
    ]
    scores = named(report, "iterations-").spec["datasets"]["curves"]
    assert [row["y"] for row in scores] == [[0.9, 0.7, 0.8], [0.8, 0.6, 0.7]]


def test_other_runs_that_measure_the_same_are_drawn_whole(tmp_path: Path):
    report = report_of(tmp_path, {"name": "warm_start", "phases": PHASES, "epochs": EPOCHS})
    charts = charts_of(report)
    assert not any(name.startswith(("iterations-", "layers-")) for name in charts)
    rows = named(report, "trajectories-").spec["datasets"]["lines"]
    assert [(row["arm"], len(row["x"])) for row in rows] == [(a.label, 13) for a in report.arms]
    (row, _) = named(report, "activation-histogram-").spec["datasets"]["lines"]
    assert (row["x"], row["y"]) == ([-1, 0, 0, 1], [0.12, 0.12, 0.88, 0.88])


def test_what_was_not_measured_in_a_stretch_is_not_drawn(tmp_path: Path):
    """Sketches and densities of iteration 1 alone, which is neither."""
    rows = [row for row in lines() if "eval/accuracy" in row or row["phase"] == 1]
    config = {"kind": "supervised", "total": "auto", "data": {"name": "digits"}, "stream": REPEATED}
    write_run(tmp_path / "run", rows, (), config)
    found = gather([tmp_path])
    names = charts_of(Report(found, summarise(found)))
    assert any(name.startswith("iterations-") for name in names)
    assert not any(name.startswith(("layers-", "traj", "activation-")) for name in names)


STORED = {"method": "full_reset", "on": "phase_start", "params": {"init": "stored"}}
PERSISTENT = {"method": "persistent", "on": "phase_start", "params": {"coef": 0.1}}
SHRINK = {"method": "shrink_perturb", "on": "phase_start"}
AGAIN = [fired("full_reset", 2, 8)]


@pytest.mark.parametrize(
    ("hooks", "receipts", "expected"),
    [
        ([], [], (True, False)),
        ([STORED], AGAIN, (True, True)),
        ([PERSISTENT], [fired("persistent", 2, 8)], (True, True)),
        ([PERSISTENT], [fired("persistent", 1, 4)], (True, False)),  # at another iteration
        ([STORED], [fired("full_reset", 2, 9)], (True, False)),  # within it
        ([{"method": "full_reset", "on": "phase_start"}], AGAIN, (True, False)),  # a new draw
        ([STORED | {"scope": "sac"}], AGAIN, (True, False)),  # not all layers
        ([STORED, SHRINK], [*AGAIN, fired("shrink_perturb", 2, 8)], (True, False)),
        ([SHRINK, STORED], [fired("shrink_perturb", 2, 8), *AGAIN], (True, True)),
        ([STORED], [AGAIN[0] | {"network": "other"}], (True, False)),
        ([SHRINK], [fired("shrink_perturb", 0, 0, 0)], (False, False)),  # before any update
        ([SHRINK], [fired("shrink_perturb", 0, 0, 5)], (True, False)),
    ],
)
def test_where_lines_begin_at_the_initial_weights(
    tmp_path: Path, hooks: list[Any], receipts: list[Any], expected: tuple[bool, bool]
):
    run = run_of(tmp_path / "run", lines(), receipts, hooks=hooks)
    assert tuple(starts_at_initial(run, own, "model") for own in stretches(run)) == expected


def drawn_paths(spec: Spec) -> list[list[tuple[float, float]]]:
    """The points of the lines of a chart, a list for each stroke."""
    (path,) = re.findall(r'<path aria-label="x: [^>]*line mark"[^>]* d="(M[^"]+)"', svg(spec))
    strokes = path.replace(",", " ").split("M")[1:]
    return [
        [
            (float(x), float(y))
            for x, y in (point.split() for point in re.split("[LZ]", own) if point)
        ]
        for own in strokes
    ]


def test_cells_of_a_density_are_drawn_equally_wide(tmp_path: Path):
    arms = report_of(tmp_path).arms
    xs, ys = outline(np.linspace(0, 5, 6), np.array([3.0, 1, 2, 4, 5]))
    (stroke,) = drawn_paths(
        chart_of_lines(arms, {"a": [Line(0, "end", xs, ys)]}, ("x", "y"), "density")
    )
    widths = [b[0] - a[0] for a, b in itertools.pairwise(stroke) if a[1] == b[1]]
    assert widths == pytest.approx([50] * 5, abs=0.01)  # of 250 pixels


def test_a_logarithmic_axis_has_gaps_where_values_are_far_below(tmp_path: Path):
    arms = report_of(tmp_path).arms
    xs, ys = outline(np.linspace(0, 5, 6), np.array([2.0, 1e-30, 1e-3, 0.0, 3e-8]))
    own = [Line(0, "end", xs, ys)]
    spec = chart_of_lines(arms, {"a": own}, ("x", "y"), "log density")
    drawn = [2, None, 1e-3, None, 3e-8]
    assert spec["datasets"]["lines"][0]["y"] == [y for y in drawn for _ in range(2)]
    strokes = drawn_paths(spec)
    assert [(a[0], b[0]) for a, b in strokes] == [(0, 50), (100, 150), (200, 250)]


def test_both_axes_of_a_plane_have_one_scale_and_hold_the_start(tmp_path: Path):
    arms = report_of(tmp_path).arms
    own = [Line(0, "end", np.array([1.0, 8.0]), np.array([-1.0, -2.0]))]
    spec = chart_of_lines(arms, {"a": own}, ("x", "y"), "plane")
    encoding = spec["concat"][0]["layer"][0]["encoding"]
    x, y = (encoding[axis]["scale"]["domain"] for axis in "xy")
    assert x[1] - x[0] == pytest.approx(y[1] - y[0])
    assert x[0] < 0 < 8 < x[1] and y[0] < -2 < 0 < y[1]
