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
from tests.adapters import hosts
from tests.adapters.test_trainers import small

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


def fit(folder: Path, module: Any, *callbacks: Any) -> None:
    """Train for 4 epochs of 10 updates."""
    data = DataLoader(TensorDataset(X, Y), batch_size=4)
    options = {"max_steps": -1, "max_epochs": 4}
    hosts.lightning_trainer(folder, list(callbacks), **options).fit(module, data)


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
        hooks, watch = lightning.HookCallback([FIRE | {"at": "90%"} | layers]), Watch(36)
        fit(tmp_path, Plant(), thaw(), hooks, watch)
        assert watch.backbone == pytest.approx(1, abs=1e-4)
        assert not watch.moments.any()
        assert hooks.receipts[0].entries_touched == 6 * 8 + (0 if layers else 8 * 2)
    with pytest.raises(NothingToEdit, match=r"hooks\[0\] \(fire\)\.layers"):
        fit(tmp_path, Plant(), thaw(), lightning.HookCallback([FIRE | {"at": "25%"} | own]))


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
            self.change(self.model.policy)

    def change(self, policy: Any) -> None:
        policy.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize(("algorithm", "network"), [("PPO", "actor"), ("DQN", "q")])
def test_hooks_follow_to_an_optimizer_that_a_policy_is_given(algorithm: str, network: str):
    def trained(*others: Any) -> Any:
        rows = [
            {"method": "weight_clip", "every": "1 updates", "networks": [network]},
            {"method": "full_reset", "at": "90%", "networks": [network]},
        ]
        callback = sb3.HookCallback(rows)
        hosts.sb3_model(algorithm).learn(64, callback=[callback, *others])
        return callback

    expected, found = trained(), trained(NewOptimizer())
    assert found.driver.clock == expected.driver.clock
    assert found.driver.networks[network].optimizers[0] is found.model.policy.optimizer
    counts = [sum(r.firings for r in c.receipts) for c in (expected, found)]
    assert counts[0] == counts[1]


class NewInTheTrainer(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.trainer.optimizer = torch.optim.Adam(self.trainer.model.parameters(), lr=1e-3)


class NewPart(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.head = nn.Linear(8, 2)
            trainer.strategy.setup_optimizers(trainer)


class NewPolicy(NewOptimizer):
    """Gives an algorithm another policy."""

    def change(self, policy: Any) -> None:
        self.model._setup_model()


def test_what_cannot_be_followed_is_an_error(tmp_path: Path):
    other = NewInTheTrainer()
    callbacks = [hf_trainer.HookCallback([FIRE | {"at": "50%"}]), other]
    other.trainer = hosts.hf_trainer(tmp_path, hosts.WithLoss(small()), callbacks)
    with pytest.raises(ConfigError, match="another Adam than when training began"):
        other.trainer.train()
    hooks = lightning.HookCallback([FIRE | {"at": "50%"}], networks={"head": "head"})
    with pytest.raises(ConfigError, match="'head' is another module now"):
        fit(tmp_path, Plant(), NewPart(), hooks)
    for algorithm in ("PPO", "DQN", "SAC"):
        callback = sb3.HookCallback([{"method": "full_reset", "every": "16 env_steps"}])
        with pytest.raises(ConfigError, match="is another module now"):
            hosts.sb3_model(algorithm).learn(64, callback=[callback, NewPolicy()])
