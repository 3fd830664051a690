"""`rlplast study`: what it runs, what it leaves alone, and how it goes on."""

import json
import shutil
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from rlplast.training.files import lock
from tests.cli.commands import command
from tests.cli.runs import files
from tests.cli.studies import ALL, ARMS, PREFIXES, TINY, again, folder_of, results
from tests.envs import hiding
from tests.runs import killed_at_rename, status
from tests.study.inline import arm_folders, attempts, inline, run_study, write_study

# Killed at its beginning.


def test_study_that_died_while_it_wrote_its_plan_starts_again(tmp_path: Path):
    config = write_study(tmp_path, TINY, ARMS)
    for writes in (1, 7):
        out = tmp_path / f"study-{writes}"
        with killed_at_rename(writes):
            run_study(config, out)
        assert not (out / "study.json").exists()
        with inline(lambda name, attempt: 1):  # it begins: that is what matters here
            outcome = command("study", config, "--out", out)
        assert outcome.code == 1 and "failed: seed-3/prefix to 50 env_steps" in outcome.out


def test_cell_whose_folder_another_process_still_writes_to_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rlplast.study.cell._PATIENCE", 0.1)
    config, out = write_study(tmp_path, TINY, {"none": {}}), tmp_path / "study"
    held = ExitStack()

    def hold(name: str, attempt: int) -> None:
        if attempt == 1:
            folder_of(out, name).mkdir(parents=True)
            held.enter_context(lock(folder_of(out, name) / ".lock") or nullcontext())
        else:
            held.close()

    outcome, started = run_study(config, out, fault=hold)
    assert (outcome.code, started) == (0, ["seed-3/none"] * 2)
    assert "is still written to by another process after 0 s" in outcome.err + outcome.out


# What it says and leaves.


def test_plan_is_shown_and_nothing_is_done(tmp_path: Path):
    config = write_study(tmp_path, TINY, ARMS, seeds=[3, 4, 5])
    with inline() as backend:
        outcome = command("study", config, "--out", tmp_path / "study", "--plan")
    assert (outcome.code, backend.started, outcome.err) == (0, [], "")
    assert not (tmp_path / "study").exists()
    lines = [line.strip("│├└─ ").partition("  ")[0] for line in outcome.out.splitlines()]
    assert sorted(lines[1:6]) == sorted(name.split("/")[-1] for name in ALL)
    assert lines[0] == "seed-3"
    assert "and 2 more trees like it" in outcome.out
    # To 50%; from there fire, and to 75%; from there two.
    assert "15 cells: the training of 5.25 whole runs instead of 9, 42% saved" in outcome.out
    arms = {"[bold]x[/nobody]": {"hooks": []}, "b": {"grid": {"optimizer.lr": [1, 2]}}}
    for seeds, said in ((4, True), (5, False)):
        outcome = command("study", write_study(tmp_path, TINY, arms, seeds=seeds), "--plan")
        assert outcome.code == 0 and "[bold]x[/nobody]" in outcome.out
        assert ("with 4 seeds the report draws no intervals" in outcome.out) == said


def test_the_plan_says_how_environments_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    hiding.register()
    for kind, says in (
        ("CState", "after an interruption: replayed: open episodes are played again"),
        ("Clock", "after the shared prefix each arm begins a new episode"),
        ("Saved", None),
    ):
        base = TINY | {"env": {"id": f"gym/{hiding.PREFIX}{kind}-v0", "num_envs": 1}}
        arms = {"none": {}, "reset": {"hooks": [{"method": "full_reset", "at": "50%"}]}}
        outcome = command("study", write_study(tmp_path, base, arms), "--plan")
        assert outcome.code == 0, outcome
        words = " ".join(outcome.out.split())
        assert (says in words) if says else ("interruption" not in words)


def test_folder_is_as_its_layout_says(finished: Path):
    study = json.loads((finished / "study.json").read_text())
    about = {"format": 1, "name": "study", "baseline": "none", "tasks": [""], "seeds": [3]}
    about |= {"arms": ["none", "fire", "reset"]}
    assert {key: study[key] for key in about} == about
    assert study["versions"]["torch"]
    assert yaml.safe_load((finished / "study.yaml").read_text())["arms"] == ARMS
    folders = {cell["key"]: finished / cell["folder"] for cell in study["cells"]}
    for cell in study["cells"]:
        folder = folders[cell["key"]]
        origin = json.loads((folder / "run.json").read_text()).get("branched_from", {"run": ""})
        assert status(folder) == "done" and (folder / "receipts.jsonl").exists()
        parent = folder if cell["parent"] is None else folders[cell["parent"]]
        assert (folder / origin["run"]).resolve() == parent.resolve()
    for name in ALL:
        (attempt,) = attempts(finished, name)
        assert (attempt["end"], attempt["exit"], attempt["reason"]) == ("done", 0, "")


def test_arm_is_a_run_like_any_other_but_is_extended_in_a_copy(study: Path, tmp_path: Path):
    arm = arm_folders(study)["seed-3/fire"]
    assert command("evaluate", arm, "--episodes", 1).code == 0
    refused = command("resume", arm, "--total", "120 env_steps")
    assert refused.code == 2
    assert "belongs to the study" in refused.err and "copy the folder" in refused.err
    copy = shutil.copytree(arm, tmp_path / "copy")
    resumed = command("resume", copy, "--total", "120 env_steps")
    assert resumed.code == 0, resumed
    assert json.loads((copy / "metrics.jsonl").read_text().splitlines()[-1])["env_steps"] == 120


# What runs again.


def test_what_was_not_changed_does_not_run_again(study: Path):
    config, before = study.parent / "study.yaml", files(study / "cells")
    prefixes = [folder_of(study, name) for name in PREFIXES]
    outcome, started = run_study(config, study)
    assert (outcome.code, started) == (0, [])
    assert f"{study} is done: `rlplast report {study}`" in outcome.out
    configs = {path: path.read_text() for path in (study / "configs").iterdir()}
    first, second, *_ = configs
    first.write_text("")
    second.write_text(configs[second].replace("lr:", "lrr:"))
    assert again(study) == []
    assert {path: path.read_text() for path in (study / "configs").iterdir()} == configs
    assert again(study, {k: v for k, v in ARMS.items() if k != "fire"}) == []
    assert json.loads((study / "study.json").read_text())["arms"] == ["none", "reset"]
    for prefix in prefixes:  # no arm needs them any more
        shutil.rmtree(prefix)
    assert again(study) == []
    assert {k: v for k, v in before.items() if "prefix" not in k} == files(study / "cells")


def test_what_was_changed_or_added_runs_alone(study: Path):
    before = results(study)
    changed = ARMS | {"reset": {"hooks": [{"method": "full_reset", "at": "80%"}]}}
    assert again(study, changed) == ["seed-3/prefix to 80 env_steps", "seed-3/reset"]
    after = results(study)
    assert {name for name in after if after[name] != before[name]} == {"seed-3/reset"}
    late = {"method": "shrink_perturb", "at": "50%", "params": {"init": "fresh"}}
    assert again(study, ARMS | {"late": {"hooks": [late]}}) == ["seed-3/late"]


def test_what_was_lost_runs_again_and_ends_alike(study: Path):
    before = results(study)
    fire = folder_of(study, "seed-3/fire")
    lines = (fire / "metrics.jsonl").read_bytes()
    (fire / "run.json").unlink()
    again(study)
    assert (fire.with_name(f"{fire.name}.aside-1") / "metrics.jsonl").read_bytes() == lines
    shutil.rmtree(arm_folders(study)["seed-3/reset"])
    assert again(study) == ["seed-3/reset"]
    assert results(study) == before

    info = json.loads((fire / "run.json").read_text())
    (fire / "run.json").write_text(json.dumps(info | {"status": "running"}))
    shutil.rmtree(max((fire / "checkpoints").iterdir(), key=lambda p: int(p.name.split("-")[1])))
    shutil.rmtree(folder_of(study, PREFIXES[0]))
    assert again(study) == ["seed-3/fire"]  # begun, it needs no prefix
    shutil.rmtree(arm_folders(study)["seed-3/none"])
    shutil.rmtree(folder_of(study, PREFIXES[1]))
    assert again(study) == [*PREFIXES, "seed-3/none"]
    assert results(study) == before


def test_cells_of_a_method_of_ones_own_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "study_of_mine.py").write_text("imported = True\n")
    monkeypatch.chdir(tmp_path)
    config = write_study(tmp_path, TINY, {"none": {}})
    with inline():
        out = tmp_path / "study"
        assert command("--import", "study_of_mine", "study", config, "--out", out).code == 0
    stored = [*out.rglob("run.json"), out / "study.json"]
    assert [json.loads(path.read_text())["imports"] for path in stored] == 2 * [["study_of_mine"]]
    sys.modules.pop("study_of_mine")
    sys.path.remove(str(tmp_path))


def test_jobs_get_the_threads_of_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def make(kind: str, jobs: int | None, threads: int, options: Any, processes: int) -> Any:
        asked.append((kind, jobs, threads, options, processes))
        raise KeyboardInterrupt

    monkeypatch.setattr("rlplast.study.api.make_executor", make)
    local = {"executor": {"kind": "local", "devices": 2}, "jobs": 5}
    config = write_study(tmp_path, TINY | {"threads": 2}, {"none": {}}, **local)
    command("study", config, "--out", tmp_path / "1")
    config = write_study(tmp_path, TINY | {"threads": 2}, {"none": {}}, threads=3, **local)
    command("study", config, "--out", tmp_path / "2", "--jobs", 4, "--executor", "ray")
    assert asked == [("local", 5, 2, {"devices": 2}, 1), ("ray", 4, 3, {}, 1)]


# Workers that die, and interruptions.


def test_workers_that_die_are_started_again_and_lose_their_own_cell_only(
    finished: Path, tmp_path: Path
):
    def fault(name: str, attempt: int) -> int | None:
        return 137 if attempt == 1 or "fire" in name else None

    arms = {name: ARMS[name] for name in ("none", "fire")}
    config, out = write_study(tmp_path, TINY, arms), tmp_path / "study"
    outcome, started = run_study(config, out, fault=fault)
    assert outcome.code == 1
    assert sorted(started) == sorted(2 * [PREFIXES[0], "seed-3/fire", "seed-3/none"])
    assert "failed, trying again: seed-3/none (exit code 137)" in outcome.err
    log = out / "logs" / f"seed-3_{folder_of(out, 'seed-3/fire').name}.log"
    assert f"failed: seed-3/fire: exit code 137   log: {log}" in outcome.out
    assert "1 cell failed; all others are done. The same command tries them again." in outcome.out
    assert again(out, arms) == ["seed-3/fire"]
    assert results(out)["seed-3/fire"] == results(finished)["seed-3/fire"]


def test_interrupted_study_goes_on(finished: Path, tmp_path: Path):
    def interrupt(cell: str, attempt: int) -> int | None:
        if cell == "seed-3/fire":
            raise KeyboardInterrupt
        return None

    config, out = write_study(tmp_path, TINY, ARMS), tmp_path / "study"
    outcome, first = run_study(config, out, fault=interrupt)
    assert outcome.code == 130
    assert f"the same command goes on with {out}" in outcome.err
    assert sorted(first[:-1] + again(out)) == sorted(ALL)
    assert results(out) == results(finished)
