"""scripts/persistent_figures.py, of runs by hand with known numbers."""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlplast.report.frame import Results, read
from tests.report.runs import receipt_row, write_run

SCRIPT = Path(__file__).parents[1] / "scripts" / "persistent_figures.py"
EPOCHS, PHASES = 4, 3
# By iteration, then by epoch of it. Iteration 0 has the best of all; iteration 2 is the champion.
ACCURACY = ((0.5, 0.9, 0.9, 0.6), (0.5, 0.6, 0.7, 0.6), (0.6, 0.8, 0.7, 0.8))
HISTOGRAM, SKETCH = "metric/activation_histogram/model", "metric/weight_sketch/model"
LAYERS = "metric/saturation_percentile/model"
STORED = {"method": "full_reset", "on": "phase_start", "params": {"init": "stored"}}
PERSISTENT = {"method": "persistent", "on": "phase_start", "params": {"coef": 0.1}}
SHRINK = {"method": "shrink_perturb", "on": "phase_start"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("persistent_figures", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(score: Callable[[float], float] = lambda value: value) -> list[dict[str, Any]]:
    """Lines of a classifier; its weights go along axis `phase`, to `epoch` of it."""
    rows = []
    for phase in range(PHASES):
        for epoch in range(1, EPOCHS + 1):
            whole = phase * EPOCHS + epoch
            clock = {"updates": 10 * whole, "epochs": whole, "phase": phase}
            found: dict[str, float] = {
                f"{SKETCH}/{i}": float(epoch) if i == phase else 0.0 for i in range(5)
            }
            found |= {f"{HISTOGRAM}/low": -1.0, f"{HISTOGRAM}/high": 1.0}
            found |= {f"{HISTOGRAM}/0": whole / 100, f"{HISTOGRAM}/1": 1 - whole / 100}
            found |= {LAYERS: 0.1, f"{LAYERS}/fc1": float(whole)}
            value = score(ACCURACY[phase][epoch - 1])
            rows.append(clock | found)
            rows.append(clock | {"eval/accuracy": value, "eval/test_accuracy": value - 0.1})
            if epoch % 2:  # logged seldom: at epochs 1 and 3
                rows.append(clock | {"train/accuracy": whole / 50})
    return rows


def fired(method: str, phase: int, epochs: int, updates: int | None = None) -> dict[str, Any]:
    clock = {"epochs": epochs, "phase": phase}
    clock["updates"] = 10 * epochs if updates is None else updates
    return receipt_row(method, 0, "model") | {"clock": clock}


def write(
    folder: Path,
    rows: list[dict[str, Any]],
    receipts: Sequence[dict[str, Any]] = (),
    stream: str = "repeated",
    **changes: Any,
) -> Path:
    config = {"kind": "supervised", "total": "auto", "data": {"name": "digits"}}
    config |= {"stream": {"name": stream, "phases": PHASES, "epochs": EPOCHS}}
    return write_run(folder, rows, receipts, config | changes)


def two_arms(folder: Path) -> Results:
    """Two seeds each; the second seed is a tenth less accurate, `persistent` another tenth."""
    for seed in (1, 2):
        for arm, less in (("none", 0.0), ("persistent", 0.1)):
            hooks = [] if arm == "none" else [PERSISTENT]
            receipts = [fired(arm, phase, phase * EPOCHS) for phase in (1, 2) if hooks]
            worse = less + 0.1 * (seed - 1)
            rows = lines(lambda value, worse=worse: value - worse)
            write(folder / f"{arm}-{seed}", rows, receipts, seed=seed, hooks=hooks)
    return read([folder])


def test_iterations_and_champions_as_plain_loops_find_them(script: ModuleType, tmp_path: Path):
    results = two_arms(tmp_path)
    best = script.iterations(results)
    assert len(best) == 4 * PHASES
    for row in best.itertuples():
        own = [
            json.loads(line)
            for line in (results.runs.folder[row.run] / "metrics.jsonl").read_text().splitlines()
        ]
        scored = [r for r in own if "eval/accuracy" in r and r["phase"] == row.iteration]
        first = max(scored, key=lambda r: r["eval/accuracy"])
        assert row.validation == first["eval/accuracy"] and row.test == first["eval/test_accuracy"]
        assert row.epoch == first["epochs"] - row.iteration * EPOCHS
        logged = [
            r["train/accuracy"]
            for r in own
            if "train/accuracy" in r
            and r["phase"] == row.iteration
            and r["epochs"] <= first["epochs"]
        ]
        assert row.training == logged[-1]
        assert row.champion == (row.iteration == 2)
    ends = script.ends(best)
    for name, value in (("iteration", 2), ("epoch", 2), ("validation", 0.8), ("test", 0.7)):
        assert ends[f"champion: {name}"].iloc[0] == pytest.approx(value)
    assert list(ends["best of all: iteration"]) == [0] * 4
    assert list(ends["iteration 0: epoch"]) == [2] * 4


def test_of_a_loss_the_smallest_is_the_best(script: ModuleType, tmp_path: Path):
    write(
        tmp_path / "run",
        [{k.replace("accuracy", "loss"): v for k, v in r.items()} for r in lines()],
    )
    best = script.iterations(read([tmp_path]))
    assert list(best.validation) == [0.5, 0.5, 0.6]
    assert list(best.iteration[best.champion]) == [1]
    assert list(best.iteration[best["best of all"]]) == [0]
    assert "| 0.500 / 0.400 /" in script.table(script.ends(best), ["arm"])


def test_tables_have_mean_and_standard_deviation(script: ModuleType, tmp_path: Path):
    ends = script.ends(script.iterations(two_arms(tmp_path)))
    head, _, none, other = script.table(ends, ["task", "arm"]).splitlines()
    assert "validation / test / training" in head
    sd = 100 * np.std([0.8, 0.7], ddof=1)
    cells = [cell.strip() for cell in none.split("|")]
    assert cells[2] == "none"
    assert cells[4].startswith(f"75.00 ± {sd:.2f} / 65.00 ± {sd:.2f} / 18.00 ± 0.00")
    assert cells[5:7] == ["2, 2", "2, 2"] and cells[8] == "0, 0"
    assert "65.00 ±" in other
    single = script.table(ends, ["arm", "seed"]).splitlines()[2:]
    assert len(single) == 4 and "±" not in "".join(single)
    assert "| none | 1 | 90.00 / 80.00 / 2.00 | 80.00 / 70.00 / 18.00 | 2 | 2 |" in single[0]


def test_runs_on_another_stream_have_no_iterations(script: ModuleType, tmp_path: Path):
    write(tmp_path / "run", lines(), stream="warm_start")
    assert script.iterations(read([tmp_path])).empty


def test_densities_are_those_nearest_to_an_epoch(script: ModuleType, tmp_path: Path):
    rows = [r for r in lines() if f"{HISTOGRAM}/0" not in r or r["epochs"] != 2]
    rows[-2][f"{HISTOGRAM}/1"] = None  # iteration 2, epoch 4: not finite
    write(tmp_path / "run", rows)
    results = read([tmp_path])
    best = script.iterations(results)
    assert [part for part, _ in script.stretches(best, 0)] == ["iteration 0", "champion"]
    zero, champion = (row for _, row in script.stretches(best, 0))
    for row, wanted, there in ((zero, 2, 1), (zero, 4, 4), (champion, 2, 2), (champion, 9, 3)):
        found = script.density(results, 0, row, HISTOGRAM, wanted)
        share = (there + EPOCHS * row.iteration) / 100
        assert set(found.epoch) == {there} and set(found.iteration) == {row.iteration}
        assert found.x.tolist() == [-1, 0, 0, 1]
        assert found.y.tolist() == pytest.approx([share, share, 1 - share, 1 - share])
    assert script.density(results, 0, zero, "metric/hessian_density/model", 1).empty


def test_the_plane_holds_both_ends(script: ModuleType):
    rng = np.random.default_rng(3)
    for first, last in (rng.normal(size=(2, 6)), (np.eye(4)[0], -np.eye(4)[0]), np.zeros((2, 3))):
        plane = script.plane_of(first, last)
        np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
        assert first @ plane == pytest.approx([np.linalg.norm(first), 0], abs=1e-12)
        assert np.linalg.norm(last @ plane) == pytest.approx(np.linalg.norm(last))
        assert (last @ plane)[1] >= -1e-12


@pytest.mark.parametrize(
    ("hooks", "receipts", "expected"),
    [
        ([], [], (True, False)),
        ([STORED], [fired("full_reset", 2, 8)], (True, True)),
        ([PERSISTENT], [fired("persistent", 2, 8)], (True, True)),
        ([PERSISTENT], [fired("persistent", 1, 4)], (True, False)),  # at another iteration
        ([STORED], [fired("full_reset", 2, 9)], (True, False)),  # within it
        ([STORED | {"params": {}}], [fired("full_reset", 2, 8)], (True, False)),  # a new draw
        ([STORED | {"scope": "sac"}], [fired("full_reset", 2, 8)], (True, False)),
        (
            [STORED, SHRINK],
            [fired("full_reset", 2, 8), fired("shrink_perturb", 2, 8)],
            (True, False),
        ),
        (
            [SHRINK, STORED],
            [fired("shrink_perturb", 2, 8), fired("full_reset", 2, 8)],
            (True, True),
        ),
        ([STORED], [fired("full_reset", 2, 8) | {"network": "other"}], (True, False)),
        ([SHRINK], [fired("shrink_perturb", 0, 0, 0)], (False, False)),  # before any update
        ([SHRINK], [fired("shrink_perturb", 0, 0, 5)], (True, False)),
    ],
)
def test_where_lines_begin_at_the_initial_weights(
    script: ModuleType, tmp_path: Path, hooks: list[Any], receipts: list[Any], expected: Any
):
    write(tmp_path / "run", lines(), receipts, hooks=hooks)
    results = read([tmp_path])
    found = script.stretches(script.iterations(results), 0)
    begun = (script.starts_at_initial(results, 0, "model", row) for _, row in found)
    assert tuple(begun) == expected


def values(spec: dict[str, Any], panel: int) -> list[dict[str, Any]]:
    return spec["concat"][panel]["layer"][-1].get("data", spec["concat"][panel].get("data"))[
        "values"
    ]


def test_pictures_show_iteration_0_and_the_champion(script: ModuleType, tmp_path: Path):
    results = two_arms(tmp_path)
    best = script.iterations(results)
    found = {name: spec for name, _, spec in script.pictures(results, best, [1])}
    scores = found["iterations"]
    assert [panel["title"] for panel in scores["concat"]] == ["validation", "test", "training"]
    rows = json.dumps(scores)
    assert rows.count('"panel": "validation"') == 2 * PHASES
    layers = json.loads(json.dumps(found["saturation_percentile-model"]))
    assert [panel["title"] for panel in layers["concat"]] == ["all layers", "fc1"]
    drawn = [(row["arm"], row["part"], row["x"], row["y"]) for row in values(layers, 1)]
    assert drawn[:4] == [("none", "iteration 0", e, e) for e in (1, 2, 3, 4)]
    assert drawn[-4:-1] != [] and {row[3] for row in drawn if row[1] == "champion"} == {
        9,
        10,
        11,
        12,
    }
    histogram = found["activation_histogram-model-epoch-1"]["concat"][0]
    assert histogram["title"] == "none: iteration 0 at epoch 1, 2 at epoch 1"


def test_files_are_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    two_arms(tmp_path / "runs")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["script", str(tmp_path / "runs"), str(out), "--epochs", "1"])
    script.main()
    text = capsys.readouterr().out
    names = {path.stem for path in out.glob("*.png")} & {path.stem for path in out.glob("*.svg")}
    kinds = ("iterations", "trajectories", "activation-histogram", "saturation-percentile")
    assert len(names) == 5 and all(any(k in n for n in names) for k in kinds)
    assert all(f"({name}.png)" in text for name in names) and "is 32%. A line" in text
    assert (out / "champions.csv").read_text().count("\n") == 5
