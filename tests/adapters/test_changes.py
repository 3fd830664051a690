"""What other people's trainers change under way: what trains, optimizers, counters."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import TrainerCallback

from rlplast.adapters import hf_trainer, lightning, sb3
from rlplast.core.errors import ConfigError, NothingToEdit
from tests.adapters import hosts, test_trainers

pytestmark = hosts.QUIET_LIGHTNING
FIRE = {"method": "fire", "params": {"polynomial": "exact"}}
X, Y = (torch.randn(40, n, generator=torch.Generator().manual_seed(n)) for n in (6, 2))


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


def fit(folder: Path, module: Any, *callbacks: Any, epochs: int = 4) -> None:
    """Train for 10 updates an epoch."""
    data = DataLoader(TensorDataset(X, Y), batch_size=4)
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=epochs, default_root_dir=folder, callbacks=list(callbacks), **options, **quiet
    )
    trainer.fit(module, data)


def orthogonality(weight: Tensor) -> float:
    values = torch.linalg.svdvals(weight.detach())
    return float(values.max() / values.min())


class Watch(pl.Callback):
    """What a module is right after an update."""

    def __init__(self, update: int) -> None:
        self.update, self.backbone, self.moments = update, 0.0, Tensor()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == self.update:
            weight = pl_module.backbone[0].weight
            self.backbone = orthogonality(weight)
            self.moments = trainer.optimizers[0].state[weight]["exp_avg"].clone()


@pytest.mark.parametrize("layers", [None, ["backbone.*"]])
def test_layers_that_thaw_under_way_are_edited(layers: Any, tmp_path: Path):
    row = FIRE | {"at": "90%"} | ({} if layers is None else {"layers": layers})
    hooks, watch, module = lightning.HookCallback([row]), Watch(36), Plant()
    thaw = BackboneFinetuning(2, lambda_func=lambda epoch: 1.0, backbone_initial_lr=1e-3)
    fit(tmp_path, module, thaw, hooks, watch)
    assert watch.backbone == pytest.approx(1, abs=1e-4)
    assert not watch.moments.any()
    assert hooks.receipts[0].entries_touched == 6 * 8 + (8 * 2 if layers is None else 0)


def test_a_hook_on_layers_that_are_still_frozen_says_so(tmp_path: Path):
    row = FIRE | {"at": "25%", "layers": ["backbone.*"]}
    thaw = BackboneFinetuning(2, lambda_func=lambda epoch: 1.0, backbone_initial_lr=1e-3)
    with pytest.raises(NothingToEdit, match=r"hooks\[0\] \(fire\)\.layers = .*no trainable layer"):
        fit(tmp_path, Plant(), thaw, lightning.HookCallback([row]))


class Anew(Plant):
    """Sets up its optimizer a second time."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.strategy.setup_optimizers(self.trainer)


def test_hooks_follow_to_an_optimizer_that_lightning_sets_up_anew(tmp_path: Path):
    rows = [FIRE | {"at": "50%"}, {"method": "shrink_perturb", "every": "1 updates"}]
    hooks, watch = lightning.HookCallback(rows), Watch(20)
    fit(tmp_path, Anew(), hooks, watch)
    assert hooks.driver.clock.updates == 40
    assert [r.clock.updates for r in hooks.receipts if r.method == "fire"] == [20]
    assert not watch.moments.any()
    assert sum(r.firings for r in hooks.receipts if r.method == "shrink_perturb") == 40


class Two(Plant):
    """Trains its parts in turn by hand, each with the other one toggled off."""

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
    hooks = lightning.HookCallback([FIRE | {"at": "30 updates"}], "40 updates", networks=parts)
    watch, module = Watch(60), Two()  # Lightning counts the steps of both
    fit(tmp_path, module, hooks, watch)
    assert [r.network for r in hooks.receipts] == ["backbone", "head"]
    assert watch.backbone == pytest.approx(1, abs=1e-4)
    assert [n.version for n in hooks.driver.networks.values()] == [0, 0]
    assert all(p.requires_grad for p in module.parameters())


class NewOptimizer(BaseCallback):
    """Gives a policy a new optimizer at the end of its second rollout."""

    rollouts = 0

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        if self.rollouts == 2:
            policy = self.model.policy
            policy.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_hooks_follow_to_an_optimizer_that_a_policy_is_given(algorithm: str):
    def trained(*others: Any) -> Any:
        rows = [
            {"method": "weight_clip", "every": "1 updates"},
            {"method": "full_reset", "at": "90%"},
        ]
        own = {"networks": ["actor"]} if algorithm == "PPO" else {}
        callback = sb3.HookCallback([row | own for row in rows])
        hosts.sb3_model(algorithm).learn(64, callback=[callback, *others])
        return callback

    expected, found = trained(), trained(NewOptimizer())
    assert found.driver.clock == expected.driver.clock
    [network] = (
        found.driver.networks.values() if algorithm == "DQN" else [found.driver.networks["actor"]]
    )
    assert network.optimizers[0] is found.model.policy.optimizer
    counts = [sum(r.firings for r in c.receipts) for c in (expected, found)]
    assert counts[0] == counts[1]


class NewInTheTrainer(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.trainer.optimizer = torch.optim.Adam(self.trainer.model.parameters(), lr=1e-3)


def test_another_optimizer_than_the_trainers_first_is_an_error(tmp_path: Path):
    hooks, other = (
        hf_trainer.HookCallback([{"method": "full_reset", "at": "50%"}]),
        NewInTheTrainer(),
    )
    model = hosts.WithLoss(test_trainers.small())
    trainer = other.trainer = hosts.hf_trainer(tmp_path, model, [hooks, other])
    with pytest.raises(ConfigError, match="trained by another Adam than when training began"):
        trainer.train()


def test_receipts_of_a_rollouts_updates_count_its_steps():
    rows = [
        {"method": "head_reset", "every": "5 updates"},
        {"method": "full_reset", "every": "40 env_steps"},
        {"method": "shrink_perturb", "every": "5 updates", "from": "50%"},
    ]
    callback = sb3.HookCallback(rows)
    model = hosts.sb3_model("PPO", n_steps=32, batch_size=16, n_epochs=5)
    model.learn(128, callback=callback)

    def moments(method: str) -> list[tuple[int, int]]:
        found = [r for r in callback.receipts if r.method == method]
        return [(r.clock.updates, r.clock.env_steps) for r in found]

    every = [(5 * (i + 1), 32 * (i // 2 + 1)) for i in range(8)]
    assert moments("head_reset") == every
    assert moments("shrink_perturb") == [m for m in every if m[1] >= 64]
    # Between the last update and the next rollout; in the last rollout at its step.
    assert moments("full_reset") == [(20, 64), (30, 96), (30, 120)]


class NewPart(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.head = nn.Linear(8, 2)
            trainer.strategy.setup_optimizers(trainer)


def test_a_part_that_another_module_replaces_is_an_error(tmp_path: Path):
    hooks = lightning.HookCallback([FIRE | {"at": "50%"}], networks={"head": "head"})
    with pytest.raises(ConfigError, match="'head' is another module now"):
        fit(tmp_path, Plant(), NewPart(), hooks)


class NewPolicy(NewOptimizer):
    """Gives an algorithm another policy."""

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        if self.rollouts == 2:
            self.model._setup_model()


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_a_policy_that_another_one_replaces_is_an_error(algorithm: str):
    callback = sb3.HookCallback([{"method": "full_reset", "every": "16 env_steps"}])
    with pytest.raises(ConfigError, match="is another module now than when training began"):
        hosts.sb3_model(algorithm).learn(64, callback=[callback, NewPolicy()])
