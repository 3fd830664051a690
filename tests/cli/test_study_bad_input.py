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
from tests.runs import flip, status
from tests.study.inline import arm_folders, run_study, write_study

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
    (hook(params={"coef": 1}), "arm 'a': fire has no parameter 'coef'"),
    (hook(at="100%"), "arm 'a': hooks[0] (fire).at = 100 env_steps"),
    ({"hooks": "dqn/hooks/fier"}, "'dqn/hooks/fire'"),
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
    ({"base": {"kind": "dqm"}}, "kind = 'dqm'"),
    ({"base": "study/minatar_when"}, "`rlplast study` takes it"),
    ({"tasks": {"a": {"env.idd": 1}}}, "'idd'"),
    ({"executor": {"kind": "local", "gpu": 1}}, "'gpus'"),
    ({"executor": {"kind": ["local"]}}, "executor.kind = ['local']"),
]


def test_key_of_the_study_is_named(tmp_path: Path):
    path = tmp_path / "study.yaml"
    for keys, says in KEYS:
        path.write_text(yaml.safe_dump({"base": TINY, "arms": NONE} | keys))
        assert says in refused(command("study", path, "--out", tmp_path / "study")), keys
        assert [found.name for found in tmp_path.iterdir()] == ["study.yaml"]


TEXTS = [
    ("base: [", "study.yaml"),
    ("kind: dqn\ntotal: 1k env_steps\n", "`rlplast train` takes it"),
]


def test_file_that_is_no_study_is_refused(tmp_path: Path):
    path = tmp_path / "study.yaml"
    for text, says in TEXTS:
        path.write_text(text)
        assert says in refused(command("study", path, "--out", tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]
    outcome = command("train", "study/minatar_when")
    assert "is a study's, not a run's: `rlplast study` takes it" in refused(outcome)


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
    prefix = folder_of(study, PREFIXES[0])
    before = files(prefix)
    message = refused(command("resume", prefix))
    assert f"is a prefix of the study {study}, which ends where its arms part" in message
    assert f"`rlplast study CONFIG --out {study}` goes on with it" in message
    assert files(prefix) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--jobs", 0], "--jobs 0: allowed is at least 1"),
        (["--cells", -1], "--cells -1: allowed is at least 1"),
        (["--time", "soon"], "--time 'soon': allowed is a number above 0"),
        (["--time", "0m"], "--time '0m': allowed is a number above 0"),
        ([], "is no study's folder: it has no study.json"),
    ],
)
def test_worker_without_work_is_refused(words: list[object], says: str, tmp_path: Path):
    assert says in refused(command("work", tmp_path, *words))


# Damage.


def test_damaged_prefix_costs_what_goes_on_from_it_until_it_is_deleted(study: Path, finished: Path):
    prefix = folder_of(study, PREFIXES[0])
    flip(checkpoint.newest(prefix / "checkpoints")[0] / "tensors.safetensors")
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


def test_damaged_arms_cost_themselves_until_they_are_deleted(study: Path, finished: Path):
    arms = arm_folders(study)
    reset, fire = arms["seed-3/reset"], arms["seed-3/fire"]
    for path in (reset / "checkpoints").iterdir():
        flip(path / "tensors.safetensors")
    info = json.loads((reset / "run.json").read_text())
    (reset / "run.json").write_text(json.dumps(info | {"status": "running"}))
    (fire / "run.json").write_text("{")
    outcome, _ = run_study(study.parent / "study.yaml", study)
    assert outcome.code == 1
    assert "failed: seed-3/reset: no usable checkpoint" in outcome.out
    assert "run.json is no valid JSON" in outcome.out
    for arm in (reset, fire):
        assert f"delete {arm} and start the study again" in outcome.out
        shutil.rmtree(arm)
    assert sorted(again(study)) == ["seed-3/fire", "seed-3/reset"]
    assert results(study) == results(finished)
