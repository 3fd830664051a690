"""Runs that fail on the way: exit 1, one message, the last good checkpoint kept."""

import itertools
import math
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from rlplast import envs
from rlplast.run import api
from rlplast.training import checkpoint
from tests.cli.commands import command
from tests.cli.runs import SMALL, jsonl, refused, small_config
from tests.envs import hiding, own_envs
from tests.runs import final

BARE = {"hooks": [], "metrics": {"every": None}, "evaluate": {"every": None}}
DIVERGING: dict[str, Any] = BARE | {
    "optimizer": {"lr": 1e38},
    "log": {"every": "100%", "to": []},
    "checkpoint": {"every": "100%"},
}


def test_a_run_that_diverges_ends_with_what_did_named_and_keeps_the_last_good_checkpoint(
    tmp_path: Path,
):
    for number, (changes, says) in enumerate(
        (
            ({"log": {"every": "10%"}}, "train/loss = nan"),
            ({"hooks": [{"method": "fire", "at": "50%"}]}, "q.fc1.weight"),
        )
    ):
        (folder := tmp_path / str(number)).mkdir()
        config = small_config(folder, **DIVERGING | changes)
        message = refused(command("train", config, "--out", folder / "run"), code=1)
        assert says in message
        assert ("lower the learning rate" in message) == ("loss" in says)
        run = api.load(folder / "run")
        assert (run.info["status"], run.info["diverged"]) == ("failed", True)
        assert run.lines("receipts") == []
        assert all(row["env_steps"] > 0 for row in run.lines())
        for tensor in run.agent().online.parameters():
            assert torch.isfinite(tensor).all()


def test_full_reset_cures_weights_that_are_not_finite_which_metrics_show_as_null(tmp_path: Path):
    hooks = [{"method": "full_reset", "at": "50%"}]
    metrics = {"every": "30%", "batch_size": 8}
    config = small_config(tmp_path, **(DIVERGING | {"hooks": hooks, "metrics": metrics}))
    outcome = command("train", config, "--out", tmp_path / "run")
    assert outcome.code in (0, 1)
    assert len(jsonl(tmp_path / "run" / "receipts.jsonl")) == 1
    rows = [row for row in jsonl(tmp_path / "run" / "metrics.jsonl") if "metric/srank/q" in row]
    assert rows[0]["metric/weight_norm/q"] is None


# Environments.


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let environments fail in a run, not as their level is tried out."""
    monkeypatch.setattr(envs, "find_resume", lambda *_, **__: envs.Level("exact"))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_hangs_is_ended_by_a_second_signal(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rlplast.envs.workers._JOIN_SECONDS", 0.1)  # the worker hangs on
    own_envs.register()
    run, env = tmp_path / "run", {"id": f"gym/{own_envs.PREFIX}Faulty-signals-v0"}
    config = small_config(tmp_path, **BARE, env=env | {"num_envs": 2, "workers": workers})
    message = refused(command("train", config, "--out", run), code=130)
    assert message.startswith("ended at once by another SIG")
    assert api.load(run).info["status"] == "interrupted"
    checkpoint.check(run / "checkpoints" / "step-0")


@pytest.mark.parametrize(
    ("fault", "workers", "says"),
    [
        ("raises", 2, "environment 0 of '{id}': step() raised KeyError: 'wheel'"),
        ("halts", 0, "environment 0 of '{id}': step() raised GeneratorExit: the wheel came off;"),
        ("leaves", 1, "environment worker 0 (process "),
        ("unsaved", 0, "environment 0 of '{id}': state_dict() raised KeyError: 'wheel'"),
    ],
)
@pytest.mark.usefixtures("untried")
def test_environment_that_fails_is_named_and_the_checkpoint_is_kept(
    fault: str, workers: int, says: str, tmp_path: Path
):
    own_envs.register()
    env = {"id": f"gym/{own_envs.PREFIX}Faulty-{fault}-v0", "num_envs": 2, "workers": workers}
    config = small_config(tmp_path, **BARE, env=env)
    message = refused(command("train", config, "--out", tmp_path / "run"), code=1)
    assert message.startswith(says.format(id=env["id"]))
    when = "as its state was to be saved" if fault == "unsaved" else "after 4 env_steps"
    assert f"{when}; the last checkpoint is kept" in message
    assert api.load(tmp_path / "run").info["status"] == "failed"
    checkpoint.check(tmp_path / "run" / "checkpoints" / "step-0")


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("last", "when"), [(120, "after 120 env_steps"), (200, "in an evaluation")]
)
def test_a_run_that_failed_goes_on_once_what_failed_is_mended(
    last: int, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own_envs.register()
    step, taken = own_envs.Walk.step, itertools.count()

    def broken(self: Any, action: Any) -> Any:
        obs, reward, *ends = step(self, action)
        return obs, math.nan if next(taken) >= last else reward, *ends

    env = {"id": f"gym/{own_envs.PREFIX}WalkDiscrete-v0", "num_envs": 2}
    changes = BARE | {"env": env, "evaluate": {"every": "100%", "episodes": 1}}
    config, run = small_config(tmp_path, **changes), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(own_envs.Walk, "step", broken)
        message = refused(command("train", config, "--out", run), code=1)
        assert f"environment 0 of '{env['id']}'" in message
        assert "the reward is nan, not a finite number" in message
        assert f"{when}; the last checkpoint is kept" in message
        assert api.load(run).info["status"] == "failed"
        assert command("resume", run).code == 1
    assert command("resume", run).code == 0
    api.train(SMALL | changes, tmp_path / "never")
    assert final(run) == final(tmp_path / "never")


def test_what_ends_the_trial_of_an_environment_ends_the_run_with_one_line(tmp_path: Path):
    hiding.register()
    env = {"id": f"gym/{hiding.PREFIX}leaves-v0", "num_envs": 2}
    config = small_config(tmp_path, **BARE, env=env)
    message = refused(command("train", config, "--out", tmp_path / "run"), code=1)
    assert message.startswith(f"env '{env['id']}', in the trial of how a run goes on with it after")
    assert "step() raised SystemExit: the wheel came off" in message
    good = small_config(tmp_path, **BARE, env=env | {"id": f"gym/{hiding.PREFIX}Saved-v0"})
    assert command("train", good, "--out", tmp_path / "run").code == 0  # nothing is in the way


def test_environment_without_an_importable_name_and_workers_is_refused_with_the_remedy(
    tmp_path: Path,
):
    gymnasium.register("RlplastNamelessRun-v0", lambda: own_envs.Walk("discrete"))
    env = {"id": "gym/RlplastNamelessRun-v0", "num_envs": 2, "workers": 2}
    config = small_config(tmp_path, hooks=[], env=env)
    message = refused(command("train", config, "--out", tmp_path / "run"), code=2)
    assert "cannot run in worker processes" in message and "'module:Class'" in message
