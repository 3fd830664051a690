"""Hooks in Lightning: what only it has; see test_trainers.py for the rest."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from rlplast.adapters.lightning import HookCallback
from rlplast.core.errors import ConfigError
from tests.adapters import test_trainers
from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    UPDATES,
    Killed,
    killer,
    lightning_module,
    lightning_trainer,
    loader,
)
from tests.adapters.test_trainers import HOOKS, NET, RESET

pytestmark = QUIET_LIGHTNING


def small() -> Any:
    return lightning_module(test_trainers.small())


def fit(folder: Path, module: Any, *callbacks: Any, path: Any = None, **options: Any) -> Any:
    trainer = lightning_trainer(folder, list(callbacks), **options)
    trainer.fit(module, loader(), ckpt_path=path)
    return trainer


def test_total_is_what_lightning_expects_to_step(tmp_path: Path):
    callback = HookCallback([RESET | {"at": "50%"}])
    fit(tmp_path, small(), callback, max_steps=-1, max_epochs=3, accumulate_grad_batches=2)
    assert [r.clock.updates for r in callback.receipts] == [6]  # 3 epochs of 4


def test_training_that_fails_lets_go_of_the_optimizer(tmp_path: Path):
    module, callback = small(), HookCallback([RESET | {"every": "2 updates"}])
    with pytest.raises(Killed):
        fit(tmp_path, module, callback, killer("lightning", 3))
    optimizer = callback.driver.networks["model"].optimizers[0]
    optimizer.step()
    assert (callback.driver.clock.updates, len(callback.receipts)) == (3, 1)


@pytest.mark.parametrize("with_hooks", [True, False])
def test_state_lies_in_the_checkpoint_and_is_missed_in_one_without(
    with_hooks: bool, tmp_path: Path
):
    callback = HookCallback(HOOKS, networks=NET)
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=8, save_top_k=-1)
    options: dict[str, Any] = {"enable_checkpointing": True}
    fit(tmp_path, small(), *[callback] * with_hooks, keep, **options)
    path = tmp_path / "step=8.ckpt"
    saved = torch.load(path, weights_only=True)["callbacks"]  # no pickles
    if with_hooks:
        assert set(saved[callback.state_key]["initial"]) == {"model"}
    else:
        with pytest.raises(ConfigError, match="load what was saved beside it"):
            fit(tmp_path, small(), callback, path=path)


class Pair(pl.LightningModule):
    """Two networks that each update steps one after the other, ``second`` last."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(64, 10), nn.Linear(64, 10)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (self.first, self.second)]

    def training_step(self, batch: Any) -> None:
        for net, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            loss = nn.functional.cross_entropy(net(batch["x"]), batch["labels"])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


def test_several_optimizers_need_their_networks_named(tmp_path: Path):
    hooks = [RESET | {"every": "3 updates"}]
    with pytest.raises(ConfigError, match=r"Pair has 2 optimizers: .*pass networks="):
        fit(tmp_path, Pair(), HookCallback(hooks))
    paths = {"one": "first", "two": "second"}
    with pytest.raises(ConfigError, match="does not know how long it will run: pass total="):
        fit(tmp_path, Pair(), HookCallback([RESET | {"at": "50%"}], networks=paths))
    callback = HookCallback(hooks, total="10 updates", networks=paths)
    fit(tmp_path, Pair(), callback)
    assert callback.driver.clock.updates == UPDATES // 2  # Lightning counts both steps
    clocks = [(r.network, r.clock.updates) for r in callback.receipts]
    assert clocks == [(name, n) for n in (3, 6, 9) for name in paths]


def test_manual_optimization_needs_a_total(tmp_path: Path):
    class Manual(Pair):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

        def optimizers(self, use_pl_optimizer: bool = True) -> Any:
            return [super().optimizers(use_pl_optimizer)] * 2

    hooks = [RESET | {"at": "50%"}]
    with pytest.raises(ConfigError, match="does not know how long it will run: pass total="):
        fit(tmp_path, Manual(), HookCallback(hooks))
    callback = HookCallback(hooks, total="16 updates")
    fit(tmp_path, Manual(), callback)
    assert [r.clock.updates for r in callback.receipts] == [8]


def test_total_that_is_not_known_must_be_given(tmp_path: Path):
    hooks = [RESET | {"at": "4 updates"}]
    with pytest.raises(ConfigError, match="does not know how long it will run: pass total="):
        fit(tmp_path, small(), HookCallback(hooks), max_steps=-1, max_epochs=-1)
