"""Runs whose methods read activations: interrupted and resumed as if uninterrupted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO

from rlplast.adapters.sb3 import CheckpointCallback, HookCallback
from tests.adapters import wide_env
from tests.adapters.hosts import QUIET_LIGHTNING, Fit, Killed, hook_callback, killer, same
from tests.adapters.readers import net, sb3
from tests.adapters.toys import row

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

INSIDE = ("toy_least", "cbp")
# Of the second the first moment after a checkpoint at update 8, with the batch before it.
LISTS = [
    [row(inside), row(scheduled, every="1 epochs")]
    for inside, scheduled in zip(INSIDE, ("toy_silent", "redo"), strict=True)
]


def books(callback: Any) -> dict[str, torch.Tensor]:
    hooks = callback.driver.state_dict()["hooks"]
    every = [h["states"] for h in hooks.values() if isinstance(h, dict) and "states" in h]
    return {f"{i}/{k}": v for i, h in enumerate(every) for ts in h.values() for k, v in ts.items()}


@pytest.mark.parametrize("hooks", LISTS, ids=INSIDE)
@pytest.mark.parametrize("host", ["hf", "lightning"])
def test_trainer_goes_on(host: str, hooks: Any, tmp_path: Path):
    def start(name: str, *others: Any) -> tuple[Fit, Any]:
        callback = hook_callback(host, hooks, networks={"model": "net"}, seed=2)
        return Fit(host, tmp_path / name, net(), *others, callback, save=True), callback

    whole, one = start("whole")
    whole.train()
    with pytest.raises(Killed):
        start("parts", killer(host, 11))[0].train()
    parts, two = start("parts")
    parts.train(resume=8)
    assert same(whole.state(), parts.state()) and same(books(one), books(two))
    assert sum(r.clock.epochs == 1 and r.firings == 1 for r in two.receipts) == 1
    if host == "lightning":
        saved = torch.load(tmp_path / "whole" / "step=8.ckpt", weights_only=True)
        assert set(saved["callbacks"][two.state_key]["probe"]["last_batch"]) == {"model"}


def test_sb3_goes_on_with_its_books_and_rollout(tmp_path: Path):
    # Due at 36 of 64: after a checkpoint inside the third rollout, before the next update.
    hooks = [row("toy_least"), row("toy_silent", every="36 env_steps")]
    first = HookCallback(hooks, total="64 env_steps")
    keep = CheckpointCallback(first, save_freq=40, save_path=str(tmp_path), name_prefix="m")
    sb3("PPO").learn(64, callback=[first, keep])
    assert [r.clock.env_steps for r in first.receipts if r.method == "toy_silent"] == [48]
    second = HookCallback(hooks, total="64 env_steps")
    second.load(tmp_path / "m_hooks_40_steps.rlplast")
    model = PPO.load(tmp_path / "m_40_steps.zip", env=wide_env.limited(wide_env.Wide()))
    model.learn(24, callback=second, reset_num_timesteps=False)
    assert second.driver.clock.updates == 8 + 8
    fired = [r.clock.env_steps for r in second.receipts if r.method == "toy_silent"]
    assert fired == [40]
    key = "toy_least every=1 updates"
    states = [c.driver.state_dict()["hooks"][key]["states"]["policy"] for c in (first, second)]
    assert [int(s["updates"]) for s in states] == [16, 16]
