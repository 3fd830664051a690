"""Hooks in Stable-Baselines3: what is saved beside a model, and how a run goes on from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback

from rlplast.adapters.sb3 import CheckpointCallback, HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError, DamagedFile
from tests.adapters.hosts import CBP, REDO, RELU, Wide, books, limited, same, sb3_model

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
    return shutil.copytree(trained, tmp_path / "saved")


def hooked(receipts: Path | None = None, state: Path | None = None) -> HookCallback:
    callback = HookCallback(HOOKS, total="80 env_steps", receipts=receipts)
    if state is not None:
        callback.load(state)
    return callback


def load(algorithm: Any, path: Path) -> Any:
    return algorithm.load(path, env=limited(Wide()), device="cpu")


def test_ppo_goes_on_with_its_books_and_rollout(tmp_path: Path):
    # Due at 36 of 64: after a checkpoint inside the third rollout, before the next update.
    hooks = [CBP | {"networks": ["actor", "critic"]}, REDO | {"every": "36 env_steps"}]
    first = HookCallback(hooks, total="64 env_steps")
    keep = CheckpointCallback(first, save_freq=40, save_path=str(tmp_path), name_prefix="m")
    sb3_model("PPO", policy_kwargs=RELU).learn(64, callback=[first, keep])
    assert {r.clock.env_steps for r in first.receipts if r.method == "redo"} == {48}
    second = HookCallback(hooks, total="64 env_steps")
    second.load(tmp_path / "m_hooks_40_steps.rlplast")
    model = load(PPO, tmp_path / "m_40_steps.zip")
    model.learn(24, callback=second, reset_num_timesteps=False)
    assert second.driver.clock.updates == 8 + 8
    assert {r.clock.env_steps for r in second.receipts if r.method == "redo"} == {40}
    assert [int(books(c.driver)["0/updates"]) for c in (first, second)] == [16, 16]
    for name, network in second.driver.networks.items():
        assert same(network.initial, first.driver.networks[name].initial), name


class AtRolloutEnd(BaseCallback):
    def __init__(self, hooks: HookCallback, folder: Path) -> None:
        super().__init__()
        self.hooks, self.folder = hooks, folder

    def _on_rollout_end(self) -> None:
        if self.num_timesteps == 32:
            self.model.save(self.folder / "m")
            self.hooks.save(self.folder / "hooks")

    def _on_step(self) -> bool:
        return True


def test_what_waits_for_a_rollouts_updates_is_due_after_a_save_before_them(tmp_path: Path):
    hooks = [{"method": "full_reset", "every": "20 env_steps"}]
    first, second = (HookCallback(hooks, total="64 env_steps") for _ in range(2))
    sb3_model("PPO").learn(64, callback=[first, AtRolloutEnd(first, tmp_path)])
    second.load(tmp_path / "hooks")
    load(PPO, tmp_path / "m.zip").learn(32, callback=second, reset_num_timesteps=False)
    for callback in (first, second):
        assert [r.clock.env_steps for r in callback.receipts] == [32, 48, 60]


def go_on(callback: HookCallback, folder: Path, reset: bool = False) -> None:
    model = load(DQN, folder / "m_40_steps.zip")
    model.learn(40, callback=callback, reset_num_timesteps=reset)


def test_checkpoint_callback_saves_both_and_no_firing_is_lost_or_doubled(saved: Path):
    folder = saved / "m_hooks_40_steps.rlplast"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["COMPLETE", "state.json", "tensors.safetensors"]
    callback = hooked(saved / "receipts.jsonl", folder)
    go_on(callback, saved)
    lines = (saved / "receipts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {r["method"] for r in rows} == {h["method"] for h in HOOKS}
    assert [r["clock"]["updates"] for r in rows if r["method"] == "head_reset"] == [7, 14, 21, 28]
    assert [r["clock"]["env_steps"] for r in rows if r["method"] == "fire"] == [0]
    assert [r["clock"]["env_steps"] for r in rows if r["method"] == "shrink_perturb"] == [60]
    [reset] = [r for r in callback.receipts if r.method == "shrink_perturb"]
    theta_0 = callback.driver.networks["q"].initial.values()
    norm = sum(float(v.double().square().sum()) for v in theta_0) ** 0.5
    assert reset.norm_after == pytest.approx(norm)
    start = find_networks(sb3_model("DQN"))["q"].initial  # of the same seed
    assert all(torch.equal(v, start[k]) for k, v in callback.driver.networks["q"].initial.items())


def test_state_that_does_not_belong_to_the_model_is_refused(saved: Path):
    at_40, at_80 = (saved / f"m_hooks_{n}_steps.rlplast" for n in (40, 80))
    with pytest.raises(ConfigError, match="load what was saved beside it"):
        go_on(HookCallback(HOOKS), saved)
    with pytest.raises(ConfigError, match="training starts at 0, the hooks are at"):
        go_on(hooked(state=at_40), saved, reset=True)
    with pytest.raises(ConfigError, match=r"q\..*weights differ"):
        go_on(hooked(state=at_80), saved)
    model = sb3_model("DQN", policy_kwargs={"net_arch": [9]})
    model.num_timesteps = 40
    with pytest.raises(ConfigError, match=r"q\.q_net\.0\.weight: .* weights differ"):
        model.learn(20, callback=hooked(state=at_40), reset_num_timesteps=False)
    callback = hooked()
    sb3_model("DQN").learn(40, callback=callback)
    other = sb3_model("DQN", seed=2).learn(40)
    with pytest.raises(ConfigError, match="of another run, model or moment"):
        other.learn(40, callback=callback, reset_num_timesteps=False)


def test_lost_receipts_and_damaged_state_are_noticed(saved: Path):
    (saved / "receipts.jsonl").write_text("")
    folder = saved / "m_hooks_40_steps.rlplast"
    with pytest.raises(DamagedFile, match="lines were lost"):
        go_on(hooked(saved / "receipts.jsonl", folder), saved)
    tensors = folder / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(DamagedFile, match=r"tensors\.safetensors"):
        HookCallback(HOOKS).load(folder)
