"""Published curves that a study names: which rows are its arms', and what is refused."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import ConfigError
from rlplast.run.shipped import config_folder
from rlplast.study.published import PublishedCurve, PublishedPoint, published_curves
from rlplast.study.spec import StudyConfig
from tests.cli.commands import command
from tests.cli.studies import TINY
from tests.refused import check_refused
from tests.study.inline import run_study, write_study

HEAD = "source,task,ratio,env_steps,seeds,return_mean,return_sd"
ROWS = (
    "a,run,1,40000,4,20,2",
    "a,run,1,20000,9,10,3",
    "a,run,8,20000,4,50,1",
    "b,run,8,20000,4,60,1",
    "a,walk,1,20000,4,5,0",
)
SHIPPED = config_folder() / "study" / "replay_ratio" / "dmc_curves.csv"


def written(folder: Path, *rows: str) -> str:
    path = folder / "curves.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    return str(path)


def study(file: Any, arms: Any, **keys: Any) -> StudyConfig:
    keys_of_study = {
        "base": "dqn/demo",
        "tasks": {"walk": {}, "run": {}, "swim": {}},
        "arms": {"none": {}, "fire": {"grid": {"seeds": [1, 2]}}},
        "published": {"file": file, "arms": arms},
    }
    return StudyConfig.parse(keys_of_study | keys)


def test_an_arm_has_the_rows_with_its_values_in_the_tasks_they_name(tmp_path: Path) -> None:
    arms = {"none": {"ratio": 1}, "fire seeds=2": {"ratio": 8, "source": "b"}}
    assert published_curves(study(written(tmp_path, *ROWS), arms)) == [
        PublishedCurve("walk", "none", "a", (PublishedPoint(20_000, 4, 5.0, 0.0),)),
        PublishedCurve(
            "run",
            "none",
            "a",
            (PublishedPoint(20_000, 9, 10.0, 3.0), PublishedPoint(40_000, 4, 20.0, 2.0)),
        ),
        PublishedCurve("run", "fire seeds=2", "b", (PublishedPoint(20_000, 4, 60.0, 1.0),)),
    ]


def test_a_study_without_the_key_has_none() -> None:
    assert published_curves(StudyConfig.parse({"base": "x", "arms": {"none": {}}})) == []


def test_the_band_is_two_standard_errors_wide_on_either_side() -> None:
    assert PublishedPoint(20_000, 9, 10.0, 3.0).band == (8.0, 12.0)
    low, high = PublishedPoint(60_000, 10, 102.0, 24.6).band
    assert (low, high) == pytest.approx((86.4416, 117.5584), abs=1e-4)


NONE = {"none": {"ratio": 1}}
BAD_KEYS: list[tuple[Any, str]] = [
    (
        {"file": "no.csv", "arms": NONE},
        "published.file = 'no.csv' is neither a file nor a shipped one: allowed is a CSV",
    ),
    ({"file": "x", "arms": {"non": {"a": 1}}}, "did you mean 'none'?"),
]
BAD_ARMS: list[tuple[Any, str]] = [
    ({}, "published.arms.none = {}: allowed is a mapping of source, ratio"),
    ({"rato": 1}, "did you mean 'ratio'?"),
    ({"seeds": 4}, "published.arms.none has"),  # a measured column
    (
        {"ratio": 2},
        "published.arms.none.ratio = 2 matches no row: allowed is one of '1', '8'; correct it",
    ),
    (
        {"source": "b", "ratio": 1},
        "published.arms.none.ratio = 1 matches no row beside source: b: allowed is one of '8'",
    ),
    ({"ratio": 8}, "matches several curves of run: allowed is one; say source"),
]


def test_keys_and_rows_that_an_arm_cannot_have_are_refused(tmp_path: Path) -> None:
    check_refused(lambda keys: published_curves(study("x", {}, published=keys)), BAD_KEYS)
    file = written(tmp_path, *ROWS)
    check_refused(lambda wanted: published_curves(study(file, {"none": wanted})), BAD_ARMS)
    words = "its rows are of no task of the study, 'hop'; allowed are run, walk: call a task so"
    with pytest.raises(ConfigError, match=words):
        published_curves(study(file, NONE, tasks={"hop": {}}))


BAD_FILES = [
    (f"{HEAD}\n{row}\n", f"{{path}}', line 2: {words}")
    for row, words in {
        "a,run,1,20000,4,much,1": "return_mean = 'much': allowed is a finite number",
        "a,run,1,20000,4,inf,1": "return_mean = 'inf'",
        "a,run,1,20000,4,1,-1": "return_sd = '-1': allowed is a finite number from 0",
        "a,run,1,20000,1,1,1": "seeds = '1': allowed is a whole number from 2 on",
        "a,run,1,2.5,4,1,1": "env_steps = '2.5': allowed is a whole number from 1",
        "a,run,1,20000,4,1,1,1": "allowed are as many values",
    }.items()
]
BAD_FILES += [
    (f"{HEAD}\n" + "a,run,1,20000,4,1,1\n" * 2, "delete one row at 20000 env_steps"),
    (f"{HEAD}\n\udcff\n", "{path}' cannot be read"),
    (f"{HEAD.replace('seeds,', '')}\n{ROWS[0]}\n", "has no column seeds: allowed is a CSV"),
    (f"{HEAD}\n", "{path}' has no rows"),
    ("", "has no column source, task, env_steps"),
]


def test_a_file_that_is_damaged_or_of_another_shape_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"

    def read(text: str) -> None:
        path.write_bytes(text.encode(errors="surrogateescape"))
        published_curves(study(str(path), NONE))

    check_refused(read, [(text, words.replace("{path}", str(path))) for text, words in BAD_FILES])


@pytest.mark.parametrize("option", ["--plan", "--smoke", "--jobs"])
def test_the_command_refuses_before_anything_runs(option: str, tmp_path: Path) -> None:
    keys = {"published": {"file": "no.csv", "arms": NONE}}
    config = write_study(tmp_path, TINY, {"none": {}}, **keys)
    more = (1,) if option == "--jobs" else ()
    outcome = command("study", config, "--out", tmp_path / "out", option, *more)
    assert (outcome.code, (tmp_path / "out").exists()) == (2, False)
    assert outcome.err.strip().splitlines()[-1].count("published.file = 'no.csv'") == 1


def test_a_study_and_its_report_hold_what_was_measured_against_the_band(tmp_path: Path) -> None:
    """The file is read once, for the study; the report goes by study.json."""
    file = written(tmp_path, "a,tiny,1,60,4,10,4", "a,tiny,1,100,4,-1000,1", "a,tiny,1,200,4,0,1")
    config = write_study(
        tmp_path,
        TINY | {"evaluate": {"every": "20 env_steps", "episodes": 1}},
        {"none": {}, "other": {"overrides": {"optimizer.lr": 0.1}}},
        tasks={"tiny": {}},
        published={"file": file, "arms": NONE},
    )
    outcome, _ = run_study(config, tmp_path / "out")
    assert outcome.code == 0, outcome
    Path(file).unlink()
    assert command("report", tmp_path / "out").code == 0
    text = (tmp_path / "out" / "report" / "published.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["arm"], row["env_steps"]) for row in rows] == [("none", "60"), ("none", "100")]
    lines = [json.loads(x) for x in folder(tmp_path / "out").read_text().splitlines()]
    returns = {x["env_steps"]: x["eval/return_mean"] for x in lines if "eval/return_mean" in x}
    for row in rows:
        ours = [value for x, value in returns.items() if x <= int(row["env_steps"])]
        assert len(ours) >= 3 and float(row["mean"]) == pytest.approx(sum(ours) / len(ours))
    assert rows[1]["verdict"] == "above"
    low, high = (float(rows[0][f"published_{end}"]) for end in ("low", "high"))
    assert (low, high) == (6.0, 14.0)  # 10 ± 2 · 4 / √4
    mean = float(rows[0]["mean"])
    assert rows[0]["verdict"] == ("above" if mean > 14 else "below" if mean < 6 else "inside")


def folder(study: Path) -> Path:
    """The metrics of the arm `none`."""
    cells = json.loads((study / "study.json").read_text())["cells"]
    (cell,) = [cell for cell in cells if cell["arm"] == "none"]
    return study / cell["folder"] / "metrics.jsonl"


def test_the_shipped_curves_are_whole() -> None:
    rows = list(csv.DictReader(SHIPPED.read_text().splitlines()))
    settings = {(r["source"], r["replay_ratio"], r["reset_every_env_steps"]) for r in rows}
    updates = {int(n) * int(m) for source, n, m in settings if source == "doro2023"}
    assert updates == {2_560_000}  # D'Oro et al.: a reset each 2.56 million updates
    assert len(rows) == 2418 and all(math.isfinite(float(r["return_sd"])) for r in rows)
    text = SHIPPED.with_suffix(".md").read_text()
    assert all(f"| {source} |" in text for source in {row["source"] for row in rows})
