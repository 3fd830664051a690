"""Hooks in Lightning: what only it has; see test_trainers.py for the rest."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from rlplast.adapters.lightning import HookCallback
from rlplast.core.errors import ConfigError
from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    REDO,
    UPDATES,
    Fit,
    Killed,
    hook_callback,
    killer,
    lightning_trainer,
    loader,
    net,
)
from tests.adapters.test_trainers import RESET, small

pytestmark = QUIET_LIGHTNING
UNKNOWN = "pass total="


def test_total_is_what_lightning_expects_to_step(tmp_path: Path):
    hooks = [RESET | {"at": "50%"}]
    callback = hook_callback("lightning", hooks)
    Fit("lightning", tmp_path, small(), callback, epochs=3, accumulation=2).train()
    assert [r.clock.updates for r in callback.receipts] == [6]  # 3 epochs of 4
    with pytest.raises(ConfigError, match=UNKNOWN):
        Fit("lightning", tmp_path, small(), hook_callback("lightning", hooks), epochs=-1).train()


def test_training_that_fails_lets_go_of_the_optimizer(tmp_path: Path):
    callback = hook_callback("lightning", [RESET | {"every": "2 updates"}])
    with pytest.raises(Killed):
        Fit("lightning", tmp_path, small(), callback, killer("lightning", 3)).train()
    callback.driver.networks["model"].optimizers[0].step()
    assert (callback.driver.clock.updates, len(callback.receipts)) == (3, 1)


def test_state_lies_in_the_checkpoint_and_is_missed_in_one_without(tmp_path: Path):
    def saved(*callbacks: Any) -> Any:
        Fit("lightning", tmp_path, net(), *callbacks, save=True, max_steps=8).train()
        return torch.load(tmp_path / "step=8.ckpt", weights_only=True)["callbacks"]  # no pickles

    callback = hook_callback("lightning", [REDO])
    state = saved(callback)[callback.state_key]
    assert set(state["initial"]) == set(state["probe"]["last_batch"]) == {"model"}
    (tmp_path / "step=8.ckpt").unlink()
    saved()
    with pytest.raises(ConfigError, match="load what was saved beside it"):
        Fit("lightning", tmp_path, net(), hook_callback("lightning", [])).train(resume=8)


class Pair(pl.LightningModule):
    """Two networks that each update steps one after the other, ``second`` last."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(64, 10), nn.Linear(64, 10)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (self.first, self.second)]

    def training_step(self, batch: Any) -> None:
        for part, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            loss = nn.functional.cross_entropy(part(batch["x"]), batch["labels"])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


class Manual(Pair):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return [super().optimizers(use_pl_optimizer)] * 2


def fit(folder: Path, module: Any, callback: HookCallback) -> None:
    lightning_trainer(folder, [callback]).fit(module, loader())


def test_several_optimizers_need_their_networks_named_and_manual_steps_a_total(tmp_path: Path):
    hooks, half = [RESET | {"every": "3 updates"}], [RESET | {"at": "50%"}]
    with pytest.raises(ConfigError, match=r"Pair has 2 optimizers: .*pass networks="):
        fit(tmp_path, Pair(), HookCallback(hooks))
    paths = {"one": "first", "two": "second"}
    for module, networks in ((Pair(), paths), (Manual(), None)):
        with pytest.raises(ConfigError, match=UNKNOWN):
            fit(tmp_path, module, HookCallback(half, networks=networks))
    callback = HookCallback(hooks, total="10 updates", networks=paths)
    fit(tmp_path, Pair(), callback)
    assert callback.driver.clock.updates == UPDATES // 2  # Lightning counts both steps
    clocks = [(r.network, r.clock.updates) for r in callback.receipts]
    assert clocks == [(name, n) for n in (3, 6, 9) for name in paths]
    callback = HookCallback(half, total="16 updates")
    fit(tmp_path, Manual(), callback)
    assert [r.clock.updates for r in callback.receipts] == [8]
