"""Every arm of a study is, bit for bit, the run it stands for."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlplast.run import api
from rlplast.study.api import read_study_config
from rlplast.study.spec import runs_of
from rlplast.training import checkpoint
from tests.cli.test_supervised_and_gpt import GPT
from tests.runs import TINY, final
from tests.sac_runs import small_sac
from tests.study.inline import arm_folders, run_study, write_study
from tests.supervised_runs import small_supervised

FIRE = {"method": "fire", "params": {"iterations": 3}}
RESET = {"method": "full_reset", "params": {"init": "fresh"}}
PERTURB = {"method": "shrink_perturb", "params": {"init": "fresh"}}
SWR = {"method": "swr", "every": "1 updates", "params": {"coef": 1e-2}}
QUIET: dict[str, Any] = {
    "metrics": {"every": None},
    "evaluate": {"every": "40%", "episodes": 1},
    "checkpoint": {"every": "25%", "keep": 2},
}
WHEN = {"when": {"metric": "train/loss", "above": 0, "cooldown": "20 env_steps"}, "from": "50%"}
EVERY = {"method": "head_reset", "every": "13 updates", "params": {"init": "fresh"}}


def assert_equal_to_plain_runs(folder: Path, base: Any, arms: Any, **keys: Any) -> Path:
    """Run a study and, by `rlplast.train`, each of its runs; returns the study's folder."""
    config, out = write_study(folder, base, arms, **keys), folder / "study"
    outcome, _ = run_study(config, out)
    assert outcome.code == 0, outcome
    study = read_study_config(str(config))
    found = arm_folders(out)
    runs = runs_of(study)
    assert len(runs) == len(found)
    for number, run in enumerate(runs):
        name = "/".join(part for part in (run.task, f"seed-{run.seed}", run.arm) if part)
        plain = folder / f"plain-{number}"
        api.train(api.read_config(study.base, *run.overrides), plain)
        assert final(found[name]) == final(plain), name
        assert saved(found[name]) == saved(plain), name
        assert (found[name] / "config.yaml").read_text() == (plain / "config.yaml").read_text()
    for row in json.loads((out / "study.json").read_text())["cells"]:
        left = out / row["folder"] / "checkpoints"
        assert checkpoint.newest(left)[1] == []  # no arm wrote into what it shares
    return out


def saved(run: Path) -> list[str]:
    """Return the names of a run's checkpoints."""
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def cells(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "study.json").read_text())["cells"]


def stops(out: Path) -> list[list[str]]:
    return [cell["stops"] for cell in cells(out) if cell["kind"] == "prefix"]


def branched(out: Path) -> dict[str, dict[str, int]]:
    """Return by arm the clock at which it was branched."""
    found = {name: json.loads((f / "run.json").read_text()) for name, f in arm_folders(out).items()}
    return {
        name.split("/")[-1]: {k: v for k, v in info["branched_from"]["clock"].items() if v}
        for name, info in found.items()
        if "branched_from" in info
    }


@pytest.mark.slow
def test_dqn_with_two_branch_times_hooks_on_some_layers_and_inside_the_update(tmp_path: Path):
    out = assert_equal_to_plain_runs(
        tmp_path,
        TINY | QUIET,
        {
            "none": {"hooks": [EVERY]},
            "early": {"hooks": [{**FIRE, "at": "25%", "scope": "dqn"}, EVERY]},
            "twice": {"hooks": [EVERY, {**RESET, "at": ["50%", "75%"]}]},
            "from half": {"hooks": [EVERY, {**SWR, "from": "50%"}]},
            "again": {"hooks": [EVERY, {**PERTURB, "every": "25%", "from": "50%"}]},
            "when": {"hooks": [EVERY, {**RESET, **WHEN}]},
            "encoder": {"hooks": [EVERY, {**PERTURB, "at": "50%", "layers": ["conv*"]}]},
        },
    )
    assert stops(out) == [["30 env_steps"], ["60 env_steps"]]


@pytest.mark.slow
def test_dqn_whose_eight_environments_jump_over_two_branch_points_at_once(tmp_path: Path):
    base = TINY | QUIET | {"env": TINY["env"] | {"num_envs": 8}, "replay_ratio": 0.3}
    agent = TINY["agent"] | {"initial_steps": 30}
    out = assert_equal_to_plain_runs(
        tmp_path,
        base | {"agent": agent},
        {
            "none": {"hooks": []},
            "one": {"hooks": [{**FIRE, "at": "59 env_steps"}]},
            "two": {"hooks": [{**PERTURB, "at": "61 env_steps"}]},
            "both": {"hooks": [{**PERTURB, "at": "61 env_steps"}, {**RESET, "at": "63 env_steps"}]},
        },
    )
    assert stops(out) == [["59 env_steps"], ["61 env_steps"], ["63 env_steps"]]
    assert {clock["env_steps"] for clock in branched(out).values()} == {64}


def test_dqn_with_a_term_that_begins_in_another_unit_than_its_hook(tmp_path: Path):
    pfo = {"method": "pfo", "every": "10 updates", "from": "50%", "params": {"batch": 4}}
    arms = {"none": {"hooks": []}, "pfo": {"hooks": [pfo]}}
    out = assert_equal_to_plain_runs(tmp_path, TINY | QUIET, arms)
    assert branched(out)["pfo"]["updates"] > 10  # a due point, at which nothing fires yet


@pytest.mark.slow
def test_dqn_with_branch_points_in_several_units_and_several_updates_a_step(tmp_path: Path):
    out = assert_equal_to_plain_runs(
        tmp_path,
        TINY | QUIET | {"replay_ratio": 2.5},
        {
            "none": {"hooks": []},
            "updates": {"hooks": [{**FIRE, "at": "15 updates"}]},
            "env_steps": {"hooks": [{**FIRE, "at": "50 env_steps"}]},
            "frames": {"hooks": [{**FIRE, "at": "55 frames"}]},
            "episodes": {"hooks": [{**FIRE, "at": "8 episodes"}]},
            "updates and more": {
                "hooks": [{**FIRE, "at": "15 updates"}, {**RESET, "at": "90 env_steps"}]
            },
        },
    )
    first = ["50 env_steps", "8 episodes", "55 frames", "15 updates"]
    assert stops(out) == [first, ["90 env_steps"]]


def test_prefix_whose_end_is_never_reached_is_the_whole_run(tmp_path: Path):
    arms = {"none": [], "never": [{**FIRE, "at": "100k frames"}]}
    config = write_study(tmp_path, TINY | QUIET, {n: {"hooks": rows} for n, rows in arms.items()})
    assert run_study(config, tmp_path / "study")[0].code == 0
    assert {clock["env_steps"] for clock in branched(tmp_path / "study").values()} == {120}
    found = arm_folders(tmp_path / "study")
    for name, hooks in arms.items():
        api.train(api.read_config(TINY | QUIET, {"hooks": hooks}), tmp_path / name)
        ours, plain = final(found[f"seed-3/{name}"]), final(tmp_path / name)
        # The last checkpoint is the prefix's, which knows of no hook.
        states = [ours.pop("state.json"), plain.pop("state.json")]
        assert ours == plain
        assert states[0]["trainable"] == states[1]["trainable"]


def test_best_checkpoint_of_the_prefix_is_the_arms_best_too(tmp_path: Path):
    out = assert_equal_to_plain_runs(
        tmp_path,
        TINY
        | {"evaluate": {"every": "15%", "episodes": 2}, "metrics": {"every": None}}
        | {"checkpoint": {"every": "20%", "keep": 1, "best": "return_mean"}},
        {"none": {"hooks": []}, "reset": {"hooks": [{**RESET, "at": "80%"}]}},
    )
    for number, arm in enumerate(arm_folders(out).values()):
        mine = api.load(arm, "best").agent().clock
        assert mine == api.load(tmp_path / f"plain-{number}", "best").agent().clock


@pytest.mark.slow
def test_only_arms_that_inject_alike_share_their_start_in_whichever_order(tmp_path: Path):
    half, fire = {"method": "plasticity_injection", "at": "50%"}, {**FIRE, "at": "50%"}
    out = assert_equal_to_plain_runs(
        tmp_path,
        TINY | QUIET,
        {
            "none": {"hooks": []},
            "inject": {"hooks": [half]},
            "inject, then fire": {"hooks": [half, fire]},
            "fire, then inject": {"hooks": [fire, half]},
            "inject and fire later": {"hooks": [half, {**FIRE, "at": "75%"}]},
            "inject later": {"hooks": [{**half, "at": "70%"}]},
        },
    )
    assert stops(out) == [["60 env_steps"], ["90 env_steps"]]


@pytest.mark.slow
def test_hooks_that_wait_for_one_thing_in_two_spellings(tmp_path: Path):
    """They have one identity, so the second one's state and draws depend on the first."""
    one, two = (
        {
            **SWR,
            "every": None,
            "when": {"metric": "train/loss", "above": 0, "cooldown": cooldown},
            "from": "50%",
            "scope": scope,
        }
        for cooldown, scope in (("10%", "all"), ("12 env_steps", "dqn"))
    )
    assert_equal_to_plain_runs(
        tmp_path, TINY | QUIET, {"both": {"hooks": [one, two]}, "second": {"hooks": [two]}}
    )


@pytest.mark.slow
def test_sac(tmp_path: Path):
    assert_equal_to_plain_runs(
        tmp_path,
        small_sac(evaluate={"every": "60%", "episodes": 1}, metrics={"every": None}),
        {
            "none": {"hooks": []},
            "fire": {"hooks": [{**FIRE, "at": "50%", "networks": ["critic"]}]},
            "swr of both": {
                "hooks": [
                    {**SWR, "from": "50%", "networks": ["critic"]},
                    {**SWR, "from": "50%", "networks": ["actor"]},
                ]
            },
            "late": {"hooks": [{**RESET, "at": "25 updates"}]},
        },
    )


@pytest.mark.slow
def test_classifier_with_hooks_at_a_phase_and_within_one(tmp_path: Path):
    out = assert_equal_to_plain_runs(
        tmp_path,
        small_supervised(metrics={"every": None}, checkpoint={"every": "50%"}),
        {
            "none": {"hooks": []},
            "phase": {"hooks": [{**FIRE, "on": "phase_start"}]},
            "phase and more": {"hooks": [{**FIRE, "on": "phase_start"}, {**PERTURB, "at": "70%"}]},
            "half": {"hooks": [{**RESET, "at": "50%"}]},
            "from an epoch": {"hooks": [{**SWR, "from": "3 epochs"}]},
            "from a phase": {"hooks": [{**SWR, "from": "phase 1"}]},
        },
    )
    assert len(stops(out)) >= 2


@pytest.mark.slow
def test_classifier_with_penalties_from_a_phase_on_shares_the_first_phase(tmp_path: Path):
    parseval = {"method": "parseval", "from": "phase 1", "params": {"coef": 1e-2, "norms": True}}
    init = {"method": "l2_init", "from": "phase 1", "params": {"coef": 1e-2}}
    out = assert_equal_to_plain_runs(
        tmp_path,
        small_supervised(penalties=[], log={"every": "4 updates"}, checkpoint={"every": "50%"}),
        {
            "none": {"hooks": []},
            "fire": {"hooks": [{**FIRE, "on": "phase_start"}]},
            "parseval": {"hooks": [], "penalties": [parseval]},
            "l2_init": {"hooks": [], "penalties": [init]},
            "both": {"hooks": [{**FIRE, "on": "phase_start"}], "penalties": [parseval, init]},
            "late": {"hooks": [], "penalties": [{**init, "from": "20 updates"}]},
        },
    )
    assert stops(out)[0] == ["1 phase", "19 updates"]
    assert len(branched(out)) == 6
    assert {clock["phase"] for clock in branched(out).values()} == {1}
    lines = (arm_folders(out)["seed-3/l2_init"] / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["phase"] for row in rows if "train/penalty" in row} == {1}
    assert {row["phase"] for row in rows if "train/loss" in row} == {0, 1}


@pytest.mark.slow
def test_dqn_with_penalties_that_begin_later_and_one_of_all_arms(tmp_path: Path):
    shared = {"method": "spectral", "params": {"coef": 1e-3}}
    late = {"method": "l2_init", "from": "50%", "params": {"coef": 1e-2}}
    out = assert_equal_to_plain_runs(
        tmp_path,
        TINY | QUIET | {"agent": TINY["agent"] | {"accelerate": "off"}},
        {
            "shared": {"hooks": [], "penalties": [shared]},
            "late": {"hooks": [], "penalties": [shared, late]},
            "reset": {"hooks": [{**RESET, "at": "75%"}], "penalties": [shared]},
            "late reset": {"hooks": [{**RESET, "at": "75%"}], "penalties": [shared, late]},
            "none": {"hooks": [], "penalties": []},
        },
    )
    assert stops(out) == [["60 env_steps"], ["90 env_steps"], ["90 env_steps"]]


@pytest.mark.slow
def test_gpt_over_two_phases(tmp_path: Path):
    config = GPT | {
        "phases": [{"updates": 6, "mixture": {"stdlib": 1}} for _ in range(2)],
        "model": GPT["model"] | {"layers": 1, "dropout": 0.1},
        "log": {"every": "2 updates"},
        "evaluate": {"every": "4 updates", "batches": 1},
        "metrics": {"every": None},
        "checkpoint": {"every": "3 updates"},
    }
    assert_equal_to_plain_runs(
        tmp_path,
        config,
        {
            "none": {"hooks": []},
            "phase": {"hooks": [{**FIRE, "on": "phase_start"}]},
            "tokens": {"hooks": [{**PERTURB, "at": "150 tokens"}]},
            "every": {"hooks": [{**PERTURB, "every": "2 updates", "from": "50%"}]},
        },
    )
