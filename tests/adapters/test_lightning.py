"""Hooks in Lightning: what only it has; see test_trainers.py for the rest."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rlplast.adapters.driver import Driver
from rlplast.adapters.lightning import HookCallback
from rlplast.core.errors import ConfigError, NothingToEdit
from tests.adapters.hosts import (
    NEVER,
    QUIET_LIGHTNING,
    REDO,
    Fit,
    Killed,
    hook_callback,
    killer,
    lightning_trainer,
    net,
)
from tests.adapters.test_trainers import RESET, small

pytestmark = QUIET_LIGHTNING
UNKNOWN = "pass total="
FIRE = {"method": "fire", "params": {"polynomial": "exact"}}
X, Y = (torch.randn(40, n, generator=torch.Generator().manual_seed(n)) for n in (6, 2))


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
    assert set(state["hooks"]["initial"]) == set(state["probe"]["last_batch"]) == {"model"}
    (tmp_path / "step=8.ckpt").unlink()
    saved()
    with pytest.raises(ConfigError, match="load what was saved beside it"):
        Fit("lightning", tmp_path, net(), hook_callback("lightning", [])).train(resume=8)


class Plant(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
            self.head = nn.Linear(8, 2)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return (self.head(self.backbone(batch[0])) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-2)


def fit(folder: Path, module: Any, *callbacks: Any) -> None:
    """Train for 4 epochs of 10 updates."""
    data = DataLoader(TensorDataset(X, Y), batch_size=4)
    options = {"max_steps": -1, "max_epochs": 4}
    lightning_trainer(folder, list(callbacks), **options).fit(module, data)


class Watch(pl.Callback):
    """How a module's first layer is right after an update."""

    def __init__(self, update: int) -> None:
        self.update, self.backbone, self.moments = update, 0.0, Tensor()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == self.update:
            weight = pl_module.backbone[0].weight
            values = torch.linalg.svdvals(weight.detach())
            self.backbone = float(values.max() / values.min())
            self.moments = trainer.optimizers[0].state[weight]["exp_avg"].clone()


def test_layers_that_thaw_under_way_are_edited_and_named_while_frozen(tmp_path: Path):
    thaw = lambda: BackboneFinetuning(2, lambda_func=lambda epoch: 1.0, backbone_initial_lr=1e-3)  # noqa: E731
    own = {"layers": ["backbone.*"]}
    for layers in ({}, own):
        hooks, watch = HookCallback([FIRE | {"at": "90%"} | layers]), Watch(36)
        fit(tmp_path, Plant(), thaw(), hooks, watch)
        assert watch.backbone == pytest.approx(1, abs=1e-4)
        assert not watch.moments.any()
        assert hooks.receipts[0].entries_touched == 6 * 8 + (0 if layers else 8 * 2)
    with pytest.raises(NothingToEdit, match=r"hooks\[0\] \(fire\)\.layers"):
        fit(tmp_path, Plant(), thaw(), HookCallback([FIRE | {"at": "25%"} | own]))


class Anew(Plant):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.strategy.setup_optimizers(self.trainer)


def test_hooks_follow_to_an_optimizer_that_lightning_sets_up_anew(tmp_path: Path):
    rows = [FIRE | {"at": "50%"}, {"method": "shrink_perturb", "every": "1 updates"}]
    hooks, watch = HookCallback(rows), Watch(20)
    fit(tmp_path, Anew(), hooks, watch)
    assert hooks.driver.clock.updates == 40
    assert [r.clock.updates for r in hooks.receipts if r.method == "fire"] == [20]
    assert not watch.moments.any()
    assert sum(r.firings for r in hooks.receipts if r.method == "shrink_perturb") == 40


class Two(Plant):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters()) for part in (self.backbone, self.head)]


def test_what_is_toggled_off_for_one_loss_is_not_frozen(tmp_path: Path):
    parts = {"backbone": "backbone", "head": "head"}
    hooks = HookCallback([FIRE | {"at": "30 updates"}], "40 updates", networks=parts)
    watch, module = Watch(60), Two()  # Lightning counts the steps of both
    fit(tmp_path, module, hooks, watch)
    assert [r.network for r in hooks.receipts] == ["backbone", "head"]
    assert watch.backbone == pytest.approx(1, abs=1e-4)
    assert [n.version for n in hooks.driver.networks.values()] == [0, 0]
    assert all(p.requires_grad for p in module.parameters())


class Adversaries(Two):
    """Each one's loss goes through both, of which one is toggled off."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.forger = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch: Any, index: int) -> None:
        losses = {
            "forger": lambda: -self.critic(self.forger(batch[0])).mean(),
            "critic": lambda: self.critic(torch.cat([batch[0], self.forger(batch[0])])).mean(),
        }
        for name in self.order.split():
            both: Any = self.optimizers()
            optimizer = both[name == "critic"]
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(losses[name]())
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters()) for part in (self.forger, self.critic)]


def test_passes_of_what_is_toggled_off_are_not_of_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows: set[tuple[str, int]] = set()
    advance = Driver.advance

    def look(driver: Driver, activations: Any = None, **counts: int) -> None:
        rows.update((name, len(found["0"])) for name, found in (activations or {}).items())
        advance(driver, activations, **counts)

    monkeypatch.setattr(Driver, "advance", look)
    for order in ("forger critic", "critic forger"):
        rows.clear()
        parts = {name: name for name in order.split()}
        fit(tmp_path, Adversaries(order), HookCallback([NEVER], "40 updates", networks=parts))
        assert rows == {("forger", 4), ("critic", 8)}


class Manual(Two):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return [super().optimizers(use_pl_optimizer)] * 2


def test_several_optimizers_need_their_networks_named_and_manual_steps_a_total(tmp_path: Path):
    hooks, half = [RESET | {"every": "3 updates"}], [RESET | {"at": "50%"}]
    with pytest.raises(ConfigError, match=r"Two has 2 optimizers: .*pass networks="):
        fit(tmp_path, Two(), HookCallback(hooks))
    paths = {"one": "backbone", "two": "head"}
    for module, networks in ((Two(), paths), (Manual(), None)):
        with pytest.raises(ConfigError, match=UNKNOWN):
            fit(tmp_path, module, HookCallback(half, networks=networks))
    callback = HookCallback(hooks, total="10 updates", networks=paths)
    fit(tmp_path, Two(), callback)
    assert callback.driver.clock.updates == 40  # Lightning counts both steps
    clocks = [(r.network, r.clock.updates) for r in callback.receipts]
    assert clocks == [(name, n) for n in (3, 6, 9) for name in paths]
    callback = HookCallback(half, total="16 updates")
    fit(tmp_path, Manual(), callback)
    assert [r.clock.updates for r in callback.receipts] == [8]


class NewPart(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.head = nn.Linear(8, 2)
            trainer.strategy.setup_optimizers(trainer)


def test_a_part_that_another_module_replaces_is_an_error(tmp_path: Path):
    hooks = HookCallback([FIRE | {"at": "50%"}], networks={"head": "head"})
    with pytest.raises(ConfigError, match="'head' is another module now"):
        fit(tmp_path, Plant(), NewPart(), hooks)
