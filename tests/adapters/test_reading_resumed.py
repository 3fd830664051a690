"""Runs whose methods read activations: interrupted and resumed as if uninterrupted."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import TrainerCallback

from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    WithLoss,
    hf_trainer,
    lightning_module,
    lightning_trainer,
    loader,
)
from tests.adapters.readers import net, same, sb3, state
from tests.adapters.toys import row

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

INSIDE = ("toy_least", "cbp")
# Of the second the first moment after a checkpoint at update 8, with the batch before it.
LISTS = [
    [row(inside), row(scheduled, every="1 epochs")]
    for inside, scheduled in zip(INSIDE, ("toy_silent", "redo"), strict=True)
]


class Killed(Exception):
    pass


class KillHf(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 11:
            raise Killed


class KillLightning(pl.Callback):
    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == 11:
            raise Killed


def books(callback: Any) -> dict[str, torch.Tensor]:
    hooks = callback.driver.state_dict()["hooks"]
    every = [h["states"] for h in hooks.values() if isinstance(h, dict) and "states" in h]
    return {f"{i}/{k}": v for i, h in enumerate(every) for ts in h.values() for k, v in ts.items()}


@pytest.mark.parametrize("hooks", LISTS, ids=INSIDE)
def test_hf_goes_on(hooks: Any, tmp_path: Path):
    from rlplast.adapters.hf_trainer import HookCallback

    def start(folder: Path, *others: Any) -> tuple[Any, Any]:
        folder.mkdir(exist_ok=True)
        callback = HookCallback(hooks, networks={"model": "net"}, seed=2)
        options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 8}
        return hf_trainer(folder, WithLoss(net()), [callback, *others], **options), callback

    whole, one = start(tmp_path / "whole")
    whole.train()
    with pytest.raises(Killed):
        start(tmp_path / "parts", KillHf())[0].train()
    parts, two = start(tmp_path / "parts")
    parts.train(resume_from_checkpoint=True)
    assert same(state([whole.optimizer], whole.model), state([parts.optimizer], parts.model))
    assert same(books(one), books(two))
    assert sum(r.clock.epochs == 1 and r.firings == 1 for r in two.receipts) == 1


@pytest.mark.parametrize("hooks", LISTS, ids=INSIDE)
def test_lightning_goes_on(hooks: Any, tmp_path: Path):
    from rlplast.adapters.lightning import HookCallback

    def fit(folder: Path, *others: Any, path: Any = None) -> tuple[Any, Any]:
        callback = HookCallback(hooks, networks={"model": "net"}, seed=2)
        keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=8, save_top_k=-1)
        every = [*others, callback, keep]
        trainer = lightning_trainer(folder, every, enable_checkpointing=True)
        module = lightning_module(net())
        trainer.fit(module, loader(), ckpt_path=path)
        return state(trainer.optimizers, module), callback

    whole, one = fit(tmp_path / "whole")
    with pytest.raises(Killed):
        fit(tmp_path / "parts", KillLightning())
    parts, two = fit(tmp_path / "parts", path=tmp_path / "parts" / "step=8.ckpt")
    assert same(whole, parts) and same(books(one), books(two))
    assert sum(r.clock.epochs == 1 and r.firings == 1 for r in two.receipts) == 1
    saved = torch.load(tmp_path / "whole" / "step=8.ckpt", weights_only=True)
    assert set(saved["callbacks"][two.state_key]["probe"]["last_batch"]) == {"model"}


def test_sb3_goes_on_with_its_books_and_rollout(tmp_path: Path):
    from stable_baselines3 import PPO

    from rlplast.adapters.sb3 import CheckpointCallback, HookCallback
    from tests.adapters import wide_env

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
