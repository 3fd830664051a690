"""scripts/persistent_figures.py, of runs by hand with known numbers."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlplast.report.frame import Results, read
from tests.report.runs import receipt_row, write_run

PATH = Path(__file__).parents[1] / "scripts" / "persistent_figures.py"
SPEC = importlib.util.spec_from_file_location("persistent_figures", PATH)
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)

EPOCHS, PHASES = 4, 3
# By iteration, then by epoch of it. Iteration 0 has the best of all; iteration 2 is the champion.
ACCURACY = ((0.5, 0.9, 0.9, 0.6), (0.5, 0.6, 0.7, 0.6), (0.6, 0.8, 0.7, 0.8))
SD = 0.1 / 2**0.5  # of two seeds that are 0.1 apart
DENSITY, SKETCH = "metric/activation_histogram/model", "metric/weight_sketch/model"
HESSIAN, LAYERS = "metric/hessian_density/model", "metric/saturation_percentile/model"
STORED = {"method": "full_reset", "on": "phase_start", "params": {"init": "stored"}}
PERSISTENT = {"method": "persistent", "on": "phase_start", "params": {"coef": 0.1}}
SHRINK = {"method": "shrink_perturb", "on": "phase_start"}


def lines(less: float = 0.0) -> list[dict[str, Any]]:
    """Lines of a classifier; its weights go along axis `phase`, to `epoch` of it."""
    rows = []
    for phase, epoch in itertools.product(range(PHASES), range(1, EPOCHS + 1)):
        whole = phase * EPOCHS + epoch
        clock = {"updates": 10 * whole, "epochs": whole, "phase": phase}
        found = {f"{SKETCH}/{i}": float(epoch * (i == phase)) for i in range(5)}
        found |= {f"{DENSITY}/low": -1.0, f"{DENSITY}/high": 1.0}
        found |= {f"{DENSITY}/0": whole / 100 + less, f"{DENSITY}/1": 1 - whole / 100}
        density = {"low": 0.0, "high": 4.0, "0": 2.0, "1": 1e-9, "2": 3e-8, "3": 0.0}
        found |= {f"{HESSIAN}/{name}": value for name, value in density.items()}
        value = ACCURACY[phase][epoch - 1] - less
        rows.append(clock | found | {LAYERS: 0.1, f"{LAYERS}/fc1": whole + less})
        rows.append(clock | {"eval/accuracy": value, "eval/test_accuracy": value - 0.1})
        if epoch == 3 or (epoch == 1 and not phase):  # logged seldom, in the champion too late
            rows.append(clock | {"train/accuracy": whole / 50})
    return rows


def one(folder: Path, rows: list[Any], receipts: Any = (), **changes: Any) -> Results:
    stream = {"name": "repeated", "phases": PHASES, "epochs": EPOCHS}
    config = {"kind": "supervised", "total": "auto", "stream": stream}
    write_run(folder / "run", rows, receipts, config | changes)
    return read([folder])


def two_arms(folder: Path) -> Results:
    """Two seeds each; the second seed is a tenth less accurate."""
    for seed, hooks in itertools.product((1, 2), ([], [PERSISTENT])):
        receipts = [fired("persistent", phase, phase * EPOCHS) for phase in (1, 2) if hooks]
        rows = lines((seed - 1) / 10)
        one(folder / f"{seed}-{len(hooks)}", rows, receipts, seed=seed, hooks=hooks)
    return read([folder])


def fired(method: str, phase: int, epochs: int, updates: int = 50, network: str = "model") -> Any:
    clock = {"epochs": epochs, "phase": phase, "updates": updates}
    return receipt_row(method, 0, network) | {"clock": clock}


def test_iterations_and_champions_as_plain_loops_find_them(tmp_path: Path):
    results = two_arms(tmp_path)
    best = script.iterations(results)
    assert len(best) == 4 * PHASES
    for row in best.itertuples():
        text = (results.runs.folder[row.run] / "metrics.jsonl").read_text()
        own = [json.loads(line) for line in text.splitlines()]
        own = [line for line in own if line["phase"] == row.iteration]
        first = max((r for r in own if "eval/accuracy" in r), key=lambda r: r["eval/accuracy"])
        assert (row.validation, row.test) == (first["eval/accuracy"], first["eval/test_accuracy"])
        assert row.epoch == first["epochs"] - row.iteration * EPOCHS
        logged = [r for r in own if "train/accuracy" in r and r["updates"] <= first["updates"]]
        last = [r["train/accuracy"] for r in logged] or [np.nan]
        assert row.training == pytest.approx(last[-1], nan_ok=True)
        assert row.champion == (row.iteration == 2)


def test_of_a_loss_the_smallest_is_the_best(tmp_path: Path):
    rows = [{k.replace("accuracy", "loss"): v for k, v in row.items()} for row in lines()]
    best = script.iterations(one(tmp_path, rows))
    assert list(best.validation) == [0.5, 0.5, 0.6]
    assert [list(best.iteration[best[part]]) for part in script.PARTS] == [[0], [1], [0]]
    assert "| 0.500 / 0.400 /" in script.table(script.ends(best), ["arm"])


def test_tables_have_mean_and_standard_deviation(tmp_path: Path):
    ends = script.ends(script.iterations(two_arms(tmp_path)))
    head, _, none, _ = script.table(ends, ["arm"]).splitlines()
    assert "validation / test / training" in head
    sd = f"± {100 * SD:.2f}"
    first = f"85.00 {sd} / 75.00 {sd} / 2.00 ± 0.00"
    last = f"75.00 {sd} / 65.00 {sd} / –"
    assert none == f"| none | {first} | 0, 2; 0, 2 | {last} | 2, 2; 2, 2 | {first} | 0, 2; 0, 2 |"
    single = script.table(ends, ["arm", "seed"]).splitlines()[2:]
    assert len(single) == 4 and "±" not in "".join(single)


def test_densities_are_those_nearest_to_an_epoch(tmp_path: Path):
    rows = [r for r in lines() if f"{DENSITY}/0" not in r or r["epochs"] != 2]
    rows[-2][f"{DENSITY}/1"] = None  # iteration 2, epoch 4: not finite
    results = one(tmp_path, rows)
    zero, champion = (row for _, row in script.stretches(script.iterations(results), 0))
    for row, wanted, there in ((zero, 2, 1), (zero, 4, 4), (champion, 2, 2), (champion, 9, 3)):
        found = script.density(results, 0, row, DENSITY, wanted)
        share = (there + EPOCHS * row.iteration) / 100
        assert set(found.epoch) == {there} and set(found.iteration) == {row.iteration}
        assert found.x.tolist() == [-1, 0, 0, 1]
        assert found.y.tolist() == pytest.approx([share, share, 1 - share, 1 - share])


def test_the_plane_holds_both_ends():
    rng = np.random.default_rng(3)
    for first, last in (rng.normal(size=(2, 6)), (np.eye(4)[0], -np.eye(4)[0]), np.zeros((2, 3))):
        plane = script.plane_of(first, last)
        np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
        assert first @ plane == pytest.approx([np.linalg.norm(first), 0], abs=1e-12)
        assert np.linalg.norm(last @ plane) == pytest.approx(np.linalg.norm(last))
        assert (last @ plane)[1] >= -1e-12


RESET, SHRUNK = fired("full_reset", 2, 8), fired("shrink_perturb", 2, 8)


@pytest.mark.parametrize(
    ("hooks", "receipts", "begun"),  # iteration 0, champion
    [
        ([], [], (True, False)),
        ([STORED], [RESET], (True, True)),
        ([PERSISTENT], [fired("persistent", 2, 8)], (True, True)),
        ([PERSISTENT], [fired("persistent", 1, 4)], (True, False)),  # at another iteration
        ([STORED], [fired("full_reset", 2, 9)], (True, False)),  # within it
        ([STORED | {"params": {}}], [RESET], (True, False)),  # a new draw
        ([STORED | {"scope": "sac"}], [RESET], (True, False)),  # not all layers
        ([STORED, SHRINK], [RESET, SHRUNK], (True, False)),
        ([SHRINK, STORED], [SHRUNK, RESET], (True, True)),
        ([STORED], [fired("full_reset", 2, 8, network="other")], (True, False)),
        ([SHRINK], [fired("shrink_perturb", 0, 0, 0)], (False, False)),  # before any update
        ([SHRINK], [fired("shrink_perturb", 0, 0, 5)], (True, False)),
    ],
)
def test_begin_at_initial_weights(tmp_path: Path, hooks: Any, receipts: Any, begun: Any):
    results = one(tmp_path, lines(), receipts, hooks=hooks)
    found = [row for _, row in script.stretches(script.iterations(results), 0)]
    assert begun == tuple(script.starts_at_initial(results, 0, "model", row) for row in found)


def test_pictures_show_both_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = two_arms(tmp_path)
    monkeypatch.setattr(script, "panels", lambda data, *_: data)
    best = script.iterations(results)
    none, other = best.arm.unique()
    found = {name: (data, text) for name, text, data in script.pictures(results, best, [1])}
    scores, _ = found["iterations"]
    (row,) = scores[(scores.panel == "test") & (scores.arm == none) & (scores.x == 2)].itertuples()
    assert (row.low, row.y, row.high) == pytest.approx((0.65 - SD, 0.65, 0.65 + SD))
    layers, _ = found["saturation_percentile-model"]
    assert list(layers.panel.unique()) == ["all layers", "fc1"]
    for arm, part in itertools.product((none, other), script.STRETCHES):
        own = layers[(layers.panel == "fc1") & (layers.arm == arm) & (layers.part == part)]
        first = 8 * (part == "champion") + 0.05  # the second seed has 0.1 more
        mean = [first + epoch for epoch in (1, 2, 3, 4)]
        assert own.x.tolist() == [1, 2, 3, 4] and own.y.tolist() == pytest.approx(mean)
    for name, at, value in (("model-epoch-1", 1, 0.09), ("model", 2, 0.1)):  # of the first seed
        data, _ = found[f"activation_histogram-{name}"]
        assert data.panel.iloc[0] == f"{none}: iteration 0 at epoch {at}, 2 at epoch {at}"
        assert data.y[data.part == "champion"].iloc[0] == pytest.approx(value)
    density = found["hessian_density-model"][0].iloc[:8]  # with gaps far below the largest value
    assert density.y.dropna().tolist() == [2, 2, 3e-8, 3e-8] and density.y.isna().sum() == 4
    paths, text = found["trajectories-model"]
    for arm, size in ((none, 4), (other, 5)):  # nothing sets the weights of `none` to θ0 again
        own = paths[(paths.arm == arm) & (paths.part == "champion")]
        assert np.hypot(own.x, own.y).tolist() == pytest.approx([0, 1, 2, 3, 4][-size:])
    assert f"{none}: 100%, {other}: 100%" in text and "is 32%. A line" in text  # 1/√(2·5)


def test_what_was_not_measured_is_not_drawn(tmp_path: Path):
    """Sketches and densities of iteration 1 alone, which is neither."""
    rows = [row for row in lines() if f"{SKETCH}/0" not in row or row["phase"] == 1]
    results = one(tmp_path / "a", rows)
    assert len([*script.pictures(results, script.iterations(results), [])]) == 1
    other = {"name": "warm_start", "phases": PHASES, "epochs": EPOCHS}
    assert script.iterations(one(tmp_path / "b", lines(), stream=other)).empty


def test_both_axes_of_a_plane_have_one_scale_and_hold_the_start(tmp_path: Path):
    results = one(tmp_path, lines())
    data = pd.DataFrame({"panel": "a", "arm": "none", "part": "", "x": [1, 8], "y": [-1, -2]})
    (panel,) = script.panels(data, results, ("x", "y"), "plane")["concat"]
    line = panel["layer"][0]
    x, y = (line["encoding"][name]["scale"]["domain"] for name in "xy")
    assert x[1] - x[0] == pytest.approx(y[1] - y[0])
    assert x[0] < 0 < 8 < x[1] and y[0] < -2 < 0 < y[1]
    assert [row["last"] for row in line.get("data", panel.get("data"))["values"]] == [False, True]


def test_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    two_arms(tmp_path / "runs")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["script", str(tmp_path / "runs"), str(out), "--epochs", "1"])
    script.main()
    names = {path.stem for path in out.glob("*.png")} & {path.stem for path in out.glob("*.svg")}
    text = capsys.readouterr().out
    assert len(names) == 6 and all(f"({name}.png)" in text for name in names)
    assert len(pd.read_csv(out / "champions.csv")) == 4
