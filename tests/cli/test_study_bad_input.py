"""Whatever is wrong with a study ends in one message that says where, and what to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.training import checkpoint
from tests.cli.commands import Outcome, command
from tests.cli.runs import files
from tests.cli.studies import PREFIXES, TINY, again, folder_of, results
from tests.runs import status
from tests.study.inline import arm_folders, inline, run_study, write_study

NONE: dict[str, Any] = {"none": {}}


def refused(outcome: Outcome, code: int = 2) -> str:
    """Check the form of a refusal, which may come below the plan; returns its message."""
    assert outcome.code == code, outcome
    *others, line = outcome.err.splitlines()
    assert all("checking that every arm can be built" in other for other in others)  # if slow
    assert line.startswith("rlplast: ")
    return line.removeprefix("rlplast: ")


def of(folder: Path, arms: Any, **keys: Any) -> Outcome:
    """Start a study that is to be refused; nothing may run, and nothing be left."""
    config = write_study(folder, TINY, arms, **keys)
    outcome, started = run_study(config, folder / "study")
    assert started == []
    assert [path.name for path in folder.iterdir()] == ["study.yaml"]
    return outcome


def hook(**keys: Any) -> dict[str, Any]:
    return {"hooks": [{"method": "fire", "at": "50%"} | keys]}


ARMS: list[tuple[dict[str, Any], str]] = [
    (hook(method="fier"), "arm 'a': hooks[0].method = 'fier'"),
    (hook(params={"coef": 1}), "arm 'a': fire has no parameter 'coef'"),
    (hook(at="100%"), "arm 'a': hooks[0] (fire).at = 100 env_steps"),
    (hook(at="7 tokens"), "counts tokens"),
    (hook(at=None), "no rule"),
    ({"hooks": "dqn/hooks/fier"}, "'dqn/hooks/fire'"),
    ({"layers": [{"method": "x"}]}, "arm 'a': layers[0].method = 'x'"),
    ({"penalties": [{"method": "l3"}]}, "arm 'a': penalties[0].method = 'l3'"),
    ({"overrides": {"optimizer.lrr": 1}}, "arm 'a': config.optimizer"),
    ({"overrides": {"hooks.0.at": "5%"}}, "arm 'a': --hooks.0.at"),
    ({"grid": {"optimizer.lrr": [1]}}, "arm 'a lrr=1': config.optimizer"),
    ({"sample": {"count": 1, "keys": {"lr": [1]}}}, "arm 'a #1': config"),
    ({}, "arms 'none', 'a' are the same run"),
]


def test_arm_and_key_are_named_before_anything_is_trained(tmp_path: Path):
    for arm, says in ARMS:
        assert says in refused(of(tmp_path, NONE | {"a": arm})), arm


KEYS: list[tuple[dict[str, Any], str]] = [
    ({"base": "dqn/demmo"}, "'dqn/demmo'"),
    ({"base": {"kind": "dqm"}}, "kind = 'dqm'"),
    ({"base": "study/minatar_when"}, "`rlplast study` takes it"),
    ({"base": "x" * 5000}, "neither a file nor a shipped config"),
    ({"overrides": {"totl": 1}}, "'totl'"),
    ({"tasks": ["gym/CartPol-v1"]}, "'gym/CartPol-v1'"),
    ({"tasks": {"a": {"env.idd": 1}}}, "'idd'"),
    ({"executor": {"kind": "local", "gpu": 1}}, "'gpus'"),
    ({"executor": {"kind": ["local"]}}, "executor.kind = ['local']"),
    ({"executor": {"kind": None}}, "executor.kind = None"),
    ({"executor": {"kind": "local", "devices": 10**30}}, "devices is 1000000000"),
]


def test_key_of_the_study_is_named(tmp_path: Path):
    path = tmp_path / "study.yaml"
    for keys, says in KEYS:
        path.write_text(yaml.safe_dump({"base": TINY, "arms": NONE} | keys))
        assert says in refused(command("study", path, "--out", tmp_path / "study")), keys
        assert [found.name for found in tmp_path.iterdir()] == ["study.yaml"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base: dqn/demo\narms: {a: {}, a: {}}\n", "key 'a' is given twice, line 2"),
        ("base: [", "study.yaml"),
        ("kind: dqn\ntotal: 1k env_steps\n", "`rlplast train` takes it"),
    ],
)
def test_file_that_is_no_study_is_refused(text: str, says: str, tmp_path: Path):
    (tmp_path / "study.yaml").write_text(text)
    assert says in refused(command("study", tmp_path / "study.yaml", "--out", tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_a_runs_config_and_a_studys_are_told_apart():
    outcome = command("study", "dqn/demo", "--plan")
    assert "this is the config of one run: `rlplast train` takes it" in refused(outcome)
    outcome = command("train", "study/minatar_when")
    assert "is a study's, not a run's: `rlplast study` takes it" in refused(outcome)
    outcome = command("study", "study/minatar_wen")
    assert "did you mean 'study/minatar_when'?" in refused(outcome)


def test_list_of_hooks_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "mine.yaml").write_text(yaml.safe_dump(hook()["hooks"]))
    config = write_study(beside, TINY, NONE | {"a": {"hooks": "mine.yaml"}})
    monkeypatch.chdir(tmp_path)
    message = refused(command("study", config, "--plan"))
    assert "arm 'a': hooks = 'mine.yaml': there is no such file" in message
    assert "or a shipped one" in message
    monkeypatch.chdir(beside)
    assert command("study", config, "--plan").code == 0


def test_prefix_is_not_resumed_past_where_its_arms_part(study: Path):
    (cell, *_) = prefixes = [
        study / row["folder"]
        for row in json.loads((study / "study.json").read_text())["cells"]
        if row["kind"] == "prefix"
    ]
    before = files(cell)
    for prefix in prefixes:
        message = refused(command("resume", prefix))
        assert f"is a prefix of the study {study}, which ends where its arms part" in message
        assert f"`rlplast study CONFIG --out {study}` goes on with it" in message
    assert files(cell) == before


# The folder.


def test_folder_with_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    config = write_study(tmp_path, TINY, NONE)
    outcome, _ = run_study(config, tmp_path / "out")
    assert "is not empty and no study's folder: choose another one" in refused(outcome)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_two_studies_in_one_folder_are_refused(tmp_path: Path):
    config, out = write_study(tmp_path, TINY, NONE), tmp_path / "study"
    seen = []

    def second(name: str, attempt: int) -> None:
        with inline() as backend:
            seen.append((command("study", config, "--out", out), backend.started))

    assert run_study(config, out, fault=second)[0].code == 0
    ((outcome, started),) = seen
    assert started == []
    assert f"{out} is in use by another study: wait for it" in refused(outcome)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"format": 2}, 2, "has study format 2, written by rlplast"),
        ({"versions": {"rlplast": "0.1", "torch": "1"}}, 2, "was begun with rlplast 0.1, this is"),
        ({"versions": []}, 1, "study.json is damaged"),
    ],
)
def test_folder_of_another_version_is_refused_and_left_alone(
    change: dict[str, Any], code: int, says: str, study: Path
):
    rows = json.loads((study / "study.json").read_text()) | change
    (study / "study.json").write_text(json.dumps(rows))
    before = files(study)
    outcome, started = run_study(study.parent / "study.yaml", study)
    assert started == []
    assert says in refused(outcome, code)
    assert files(study) == before


# Damage.


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_newest(run: Path) -> None:
    flip(checkpoint.newest(run / "checkpoints")[0] / "tensors.safetensors")


def test_damaged_prefix_costs_what_goes_on_from_it_until_it_is_deleted(study: Path, finished: Path):
    prefix = folder_of(study, PREFIXES[0])
    flip_newest(prefix)
    for name in ("seed-3/fire", "seed-3/reset"):
        shutil.rmtree(arm_folders(study)[name])
    outcome, _ = run_study(study.parent / "study.yaml", study)
    assert outcome.code == 1
    assert status(folder_of(study, "seed-3/reset")) == "done"
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("failed: "))
    assert line.startswith("failed: seed-3/fire: where ")
    assert "tensors.safetensors was altered after it was written" in line
    assert f"delete {prefix} and start the study again: it is trained anew" in line
    assert f"log: {study}/logs/seed-3_fire" in line
    shutil.rmtree(prefix)
    assert again(study) == [PREFIXES[0], "seed-3/fire"]
    assert results(study) == results(finished)


def test_damaged_arm_costs_itself_until_it_is_deleted(study: Path, finished: Path):
    arm = arm_folders(study)["seed-3/reset"]
    for path in (arm / "checkpoints").iterdir():
        flip(path / "tensors.safetensors")
    info = json.loads((arm / "run.json").read_text())
    (arm / "run.json").write_text(json.dumps(info | {"status": "running"}))
    outcome, _ = run_study(study.parent / "study.yaml", study)
    assert outcome.code == 1
    assert "failed: seed-3/reset: no usable checkpoint" in outcome.out
    assert f"delete {arm} and start the study again: it is trained anew" in outcome.out
    shutil.rmtree(arm)
    assert again(study) == ["seed-3/reset"]
    assert results(study) == results(finished)


def test_run_json_that_is_damaged_is_named(study: Path, finished: Path):
    arm = arm_folders(study)["seed-3/fire"]
    (arm / "run.json").write_text("{")
    outcome, _ = run_study(study.parent / "study.yaml", study)
    assert outcome.code == 1
    assert "run.json is no valid JSON" in outcome.out
    assert f"delete {arm} and start the study again" in outcome.out
    shutil.rmtree(arm)
    assert again(study) == ["seed-3/fire"]
    assert results(study) == results(finished)


def test_arm_that_diverges_loses_nobody_else(tmp_path: Path):
    arms = NONE | {"steep": {"overrides": {"optimizer.lr": 1e30}}}
    outcome, _ = run_study(write_study(tmp_path, TINY, arms), tmp_path / "study")
    assert outcome.code == 1
    assert "failed: seed-3/steep: " in outcome.out
    assert "training diverged" in outcome.out
    arms = arm_folders(tmp_path / "study")
    assert (status(arms["seed-3/none"]), status(arms["seed-3/steep"])) == ("done", "failed")
