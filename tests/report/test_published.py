"""Published curves: bands and verdicts, by hand, for a tiny study."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import DamagedFile
from rlplast.report import charts, tables
from rlplast.report.frame import read
from rlplast.report.published import bands, compared, uncompared
from rlplast.report.view import Report, report_of
from tests.report.runs import write_study

# Evaluations each 10k up to 50k. At x the arm `none` returns x / 1000 + seed, and `fire` 0.
# So the mean over seeds 1 and 3, of the last two evaluations, is x / 1000 − 5 + 2.
POINTS = [
    {"env_steps": 20_000, "seeds": 4, "mean": 16.0, "sd": 1.0},  # 15 to 17: 17 is inside
    {"env_steps": 40_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # 38 to 42: 37 is below
    {"env_steps": 50_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # 38 to 42: 47 is above
    {"env_steps": 60_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # not reached
]
LOW = [{"env_steps": 20_000, "seeds": 4, "mean": 0.5, "sd": 1.0}]  # −0.5 to 1.5
CURVES = [
    {"task": "hop", "arm": "none", "source": "somebody2020", "points": POINTS},
    {"task": "hop", "arm": "fire", "source": "other2021", "points": LOW},
]


def score(task: str, arm: str, seed: int, x: int) -> float:
    return x / 1000 + seed if arm == "none" else 0.0


def made(folder: Path, curves: Any = CURVES, name: str = "demo", **keys: Any) -> Path:
    own: dict[str, Any] = {"score": score, "total": 50_000, "every": 10_000, "branch": 30_000}
    arms = ("none", "fire", "swr")
    study = write_study(folder, arms, (1, 3), ("hop",), name=name, **own | keys)
    stored = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps(stored | {"published": curves}))
    return study


def report(*studies: Path) -> Report:
    return report_of(read(studies))


def test_means_are_judged_where_they_were_published(tmp_path: Path):
    own = report(made(tmp_path))
    rows = compared(own)
    columns = ["arm", "env_steps", "seeds", "mean", "verdict", "published_low", "published_high"]
    assert rows[columns].to_numpy().tolist() == [
        ["none", 20_000, 2, 17.0, "inside", 15.0, 17.0],
        ["none", 40_000, 2, 37.0, "below", 38.0, 42.0],
        ["none", 50_000, 2, 47.0, "above", 38.0, 42.0],
        ["fire", 20_000, 2, 0.0, "inside", -0.5, 1.5],  # a return of 0 is a return
    ]
    none, fire = bands(own, "hop")
    assert none[:2] == ("none", "somebody2020, 4 to 9 seeds")
    xs, *heights = (list(own) for own in none[2:])
    assert xs == [20_000, 40_000, 50_000]  # as far as ours go
    assert heights == [[16, 40, 40], [15, 38, 38], [17, 42, 42]]
    assert fire[:2] == ("fire", "other2021, 4 seeds")
    drawn = charts.curves(own, "hop").spec["datasets"]["bands"]
    assert [(row["arm"], row["words"]) for row in drawn] == [none[:2], fire[:2]]


def test_runs_without_evaluations_before_a_moment_are_left_out(tmp_path: Path):
    own = report(made(tmp_path, every=25_000))  # evaluations at 25k and 50k only
    rows = compared(own)
    assert rows[["arm", "env_steps", "mean"]].to_numpy().tolist() == [
        ["none", 40_000, 27.0],
        ["none", 50_000, 52.0],
    ]
    (words,) = uncompared(own, rows)
    assert words.startswith("hop, fire: not compared with other2021") and "20,000" in words
    assert words in tables.published(own)


def test_a_study_may_name_no_curve_and_have_another_unit(tmp_path: Path):
    assert compared(report(made(tmp_path, curves=[]))).empty
    updates = report(made(tmp_path, name="updates", config={"total": "25000 updates"}))
    assert bands(updates, "hop") == [] and len(compared(updates))  # env_steps are known too


@pytest.mark.parametrize("damage", [[{"points": []}], [3], [CURVES[0] | {"points": [{"x": 1}]}]])
def test_a_damaged_plan_is_named(damage: Any, tmp_path: Path):
    with pytest.raises(DamagedFile, match=r"demo"):
        read([made(tmp_path, curves=damage)])
