"""Hooks in Stable-Baselines3: what is saved beside a model, and how a run goes on from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import DQN, SAC

from rlplast.adapters.sb3 import CheckpointCallback, HookCallback
from rlplast.core.errors import ConfigError, DamagedFile
from tests.adapters import wide_env
from tests.adapters.hosts import sb3_model

HOOKS = [
    {"method": "fire", "at": "0%"},
    {"method": "swr", "every": "1 updates"},
    {"method": "head_reset", "every": "7 updates"},
    # With coefficient 1 the weights are θ0 afterwards, whatever they were.
    {"method": "shrink_perturb", "at": "75%", "params": {"coef": 1.0}},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DQN's folder after 80 env_steps, with a checkpoint every 40."""
    folder = tmp_path_factory.mktemp("trained")
    callback = hooked(folder / "receipts.jsonl")
    keep = CheckpointCallback(callback, save_freq=40, save_path=str(folder), name_prefix="m")
    sb3_model("DQN").learn(80, callback=[callback, keep])
    return folder


@pytest.fixture
def saved(trained: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(trained, tmp_path / "saved")


def hooked(receipts: Path | None = None, state: Path | None = None) -> HookCallback:
    callback = HookCallback(HOOKS, total="80 env_steps", receipts=receipts)
    if state is not None:
        callback.load(state)
    return callback


def timeless(path: Path) -> list[dict[str, Any]]:
    """Receipts without what depends on the replay, which Stable-Baselines3 saves apart."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = ("method", "network", "clock", "crossings", "entries_touched", "firings", "followers")
    return [{key: row[key] for key in kept} for row in rows]


def load(name: str, path: Path) -> Any:
    env = wide_env.WideControl() if name == "SAC" else wide_env.Wide()
    return (SAC if name == "SAC" else DQN).load(path, env=wide_env.limited(env), device="cpu")


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_saved_and_loaded_run_leaves_the_receipts_of_one_that_went_on(name: str, tmp_path: Path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    callback = hooked(whole)
    model = sb3_model(name).learn(40, callback=callback)
    model.learn(40, callback=callback, reset_num_timesteps=False)

    first = hooked(parts)
    model = sb3_model(name).learn(40, callback=first)
    model.save(tmp_path / "model")
    first.save(tmp_path / "hooks")
    model.learn(20, callback=first, reset_num_timesteps=False)  # what a kill throws away
    second = hooked(parts, tmp_path / "hooks")
    model = load(name, tmp_path / "model.zip")
    model.learn(40, callback=second, reset_num_timesteps=False)
    assert timeless(parts) == timeless(whole)
    assert {r["method"] for r in timeless(whole)} == {h["method"] for h in HOOKS}

    resets = {r.network: r for r in second.receipts if r.method == "shrink_perturb"}
    assert set(resets) == set(first.driver.networks)
    for key, network in second.driver.networks.items():
        theta_0 = first.driver.networks[key].initial
        assert all(torch.equal(v, theta_0[k]) for k, v in network.initial.items())
        norm = sum(float(v.double().square().sum()) for v in theta_0.values()) ** 0.5
        assert resets[key].norm_after == pytest.approx(norm)


def go_on(callback: HookCallback, folder: Path, reset: bool = False) -> None:
    """Train on from the checkpoint at 40."""
    model = load("DQN", folder / "m_40_steps.zip")
    model.learn(40, callback=callback, reset_num_timesteps=reset)


def test_checkpoint_callback_saves_both_and_no_firing_is_lost_or_doubled(saved: Path):
    folder = saved / "m_hooks_40_steps.rlplast"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["COMPLETE", "state.json", "tensors.safetensors"]
    go_on(hooked(saved / "receipts.jsonl", folder), saved)
    rows = [r for r in timeless(saved / "receipts.jsonl") if r["method"] != "swr"]
    assert [r["clock"]["updates"] for r in rows if r["method"] == "head_reset"] == [7, 14, 21, 28]
    assert [r["clock"]["env_steps"] for r in rows if r["method"] == "fire"] == [0]
    assert [r["clock"]["env_steps"] for r in rows if r["method"] == "shrink_perturb"] == [60]


def test_resuming_without_the_hooks_state_is_refused(saved: Path):
    with pytest.raises(ConfigError, match="load what was saved beside it"):
        go_on(HookCallback(HOOKS), saved)
    callback = hooked(state=saved / "m_hooks_40_steps.rlplast")
    with pytest.raises(ConfigError, match="training starts at 0, the hooks are at"):
        go_on(callback, saved, reset=True)


def test_damaged_state_is_refused(saved: Path):
    folder = saved / "m_hooks_40_steps.rlplast"
    tensors = folder / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(DamagedFile, match=r"tensors\.safetensors has \d+ bytes, written were"):
        HookCallback(HOOKS).load(folder)


def test_state_of_another_network_is_refused(saved: Path):
    callback = hooked(state=saved / "m_hooks_40_steps.rlplast")
    model = sb3_model("DQN", policy_kwargs={"net_arch": [9]})
    model.num_timesteps = 40
    with pytest.raises(DamagedFile, match=r"no initial value of q\.q_net\.0\.weight with shape"):
        model.learn(20, callback=callback, reset_num_timesteps=False)


def test_lost_receipts_are_noticed(saved: Path):
    (saved / "receipts.jsonl").write_text("")
    callback = hooked(saved / "receipts.jsonl", saved / "m_hooks_40_steps.rlplast")
    with pytest.raises(DamagedFile, match="lines were lost"):
        go_on(callback, saved)


def test_model_and_hooks_of_two_moments_are_refused(saved: Path):
    callback = hooked(state=saved / "m_hooks_80_steps.rlplast")
    with pytest.raises(ConfigError, match=r"q\..*weights differ .*saved together with this"):
        go_on(callback, saved)


def test_callback_of_another_model_is_refused():
    callback = hooked()
    sb3_model("DQN").learn(40, callback=callback)
    other = sb3_model("DQN", seed=2).learn(40)
    with pytest.raises(ConfigError, match="state is of another run, model or moment"):
        other.learn(40, callback=callback, reset_num_timesteps=False)
