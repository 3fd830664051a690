"""Trainers of a second, ours and other people's, that a list of hooks is put into."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.method.receipt import Receipt
from rlplast.run import api
from rlplast.run.build import build
from rlplast.training.config import read_yaml
from tests.adapters import wide_env
from tests.sac_runs import QUIET, small_sac
from tests.supervised_runs import small_supervised

UPDATES = 20
QUIET_LIGHTNING = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        r".isinstance\(treespec, LeafSpec\)",  # Lightning's own use of torch's pytrees
        "The 'train_dataloader' does not have many workers",  # on machines with many cores
        "Checkpoint directory",
        "Be aware that when using `ckpt_path`",
    )
]


def mlp(weights: list[Tensor] | None = None) -> nn.Sequential:
    """The Q-network of `wide_env`: 64 → 256 → 256 → 10."""
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    give(net, weights)
    return net


@torch.no_grad()
def give(module: nn.Module, weights: list[Tensor] | None) -> None:
    """Copy weights into a module's parameters, in order."""
    if weights is not None:
        for parameter, value in zip(module.parameters(), weights, strict=True):
            parameter.copy_(value)


# Stable-Baselines3, which writes into the policy_kwargs it is given: each gets its own.


REPLAY = {
    "learning_starts": 10,
    "batch_size": 8,
    "buffer_size": 100,
    "train_freq": 4,
    "gradient_steps": 2,
}
SETTINGS = {
    "DQN": REPLAY | {"target_update_interval": 10},
    "QRDQN": REPLAY,
    "PPO": {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    "A2C": {"n_steps": 8},
    "RecurrentPPO": {"n_steps": 8, "batch_size": 8},
}


def sb3_model(name: str, env: Any = None, policy: str = "MlpPolicy", **options: Any) -> Any:
    """An algorithm of Stable-Baselines3 or sb3-contrib, with one hidden layer of 8 units."""
    import sb3_contrib
    import stable_baselines3

    algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 1, "device": "cpu"}
    settings |= SETTINGS.get(name, REPLAY) | options
    if env is None:
        env = wide_env.limited(wide_env.Wide() if name in SETTINGS else wide_env.WideControl())
    return algorithm(policy, env, **copy.deepcopy(settings))


# The Hugging Face Trainer


class WithLoss(nn.Module):
    """A model as the Trainer wants it: a dictionary with its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 64) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(count, 64, generator=generator)
    y = torch.randint(10, (count,), generator=generator)
    return [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]


def hf_trainer(folder: Path, model: nn.Module, callbacks: list[Any], **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": UPDATES,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 6,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "log_level": "error",
        "dataloader_pin_memory": False,
        "seed": 3,
    }
    arguments = TrainingArguments(**(settings | options))
    return Trainer(model=model, args=arguments, train_dataset=rows(), callbacks=callbacks)


# Lightning


def lightning_module(net: nn.Module) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Module()


def lightning_trainer(folder: Path, callbacks: list[Any], **options: Any) -> Any:
    import lightning.pytorch as pl

    settings: dict[str, Any] = {
        "default_root_dir": str(folder),
        "max_steps": UPDATES,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 6,
        "callbacks": callbacks,
    }
    return pl.Trainer(**(settings | options))


def loader(seed: int = 2, batch_size: int = 8) -> Any:
    """Batches in an order of their own, the same in every epoch and process."""
    data, generator = rows(), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator).tolist()
    return torch.utils.data.DataLoader([data[i] for i in order], batch_size=batch_size)


# Both of them


class Killed(Exception):
    """Ends a run that is interrupted."""


def killer(host: str, step: int) -> Any:
    """A callback that ends training after an update."""
    import lightning.pytorch as pl
    from transformers import TrainerCallback

    class Hf(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                raise Killed

    class Lightning(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.global_step == step:
                raise Killed

    return Hf() if host == "hf" else Lightning()


class Fit:
    """A network in the Hugging Face Trainer ("hf") or in Lightning ("lightning").

    With `save` there is a checkpoint every 8 updates; options are those of the trainer.
    """

    def __init__(
        self,
        host: str,
        folder: Path,
        net: nn.Module,
        *callbacks: Any,
        accumulation: int = 1,
        epochs: int | None = None,
        save: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.host, self.folder = host, folder
        if epochs is not None:
            key = "num_train_epochs" if host == "hf" else "max_epochs"
            options |= {"max_steps": -1, key: epochs}
        if host == "hf":
            options |= {"gradient_accumulation_steps": accumulation}
            options |= {"save_strategy": "steps", "save_steps": 8} if save else {}
            self.module: Any = WithLoss(net)
            self.trainer = hf_trainer(folder, self.module, list(callbacks), **options)
            self.trainer.optimizer = optimizer
            return
        from lightning.pytorch.callbacks import ModelCheckpoint

        keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=8, save_top_k=-1)
        options |= {"accumulate_grad_batches": accumulation, "enable_checkpointing": save}
        self.module = lightning_module(net)
        if optimizer is not None:
            self.module.configure_optimizers = lambda: optimizer
        self.trainer = lightning_trainer(folder, [*callbacks, *[keep] * save], **options)

    def train(self, resume: int | None = None) -> "Fit":
        """Train; if asked to, from the checkpoint of an update."""
        if self.host == "hf":
            self.trainer.train(resume_from_checkpoint=resume is not None)
        else:
            path = None if resume is None else self.folder / f"step={resume}.ckpt"
            self.trainer.fit(self.module, loader(), ckpt_path=path)
        return self

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer if self.host == "hf" else self.trainer.optimizers[0]

    def state(self) -> dict[str, Tensor]:
        return state([self.optimizer], self.module)


def hook_callback(host: str, *args: Any, **options: Any) -> Any:
    """The `HookCallback` of a trainer."""
    from rlplast.adapters import hf_trainer, lightning

    return (hf_trainer if host == "hf" else lightning).HookCallback(*args, **options)


def state(optimizers: Any, module: nn.Module) -> dict[str, Tensor]:
    """Weights and optimizer state."""
    found = dict(module.state_dict())
    for number, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            found |= {f"{number}/{index}/{k}": v for k, v in values.items()}
    return {k: torch.as_tensor(v).clone() for k, v in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


# Every trainer with one list: what it fired.

Host = Callable[[Path, Path, list[Tensor] | None], list[Receipt]]


def drive(config: Mapping[str, Any], hooks: Path, weights: list[Tensor] | None) -> list[Receipt]:
    """Train one of our kinds as the loop does."""
    parsed = api.read_config(dict(config) | QUIET | {"hooks": read_yaml(hooks)}, {})
    trainable, fired = build(parsed)
    if weights is not None:
        (network,) = trainable.networks.values()
        give(network.module, weights)
        for block in network.blocks:
            network.initial[block.name].copy_(block.view)
        fired = Hooks(
            parsed.hooks,
            trainable.networks,
            parsed.reference_time(),
            parsed.seed,
            trainable.units,
            parsed.horizon(),
        )
    trainable.after_update = fired.after_update
    receipts = fired.fire(None, trainable.clock)
    total = parsed.total_time()
    while trainable.clock[total.unit] < total.value or trainable.owes():
        previous = trainable.clock
        trainable.step()
        receipts += fired.fire(previous, trainable.clock)
    trainable.close()
    return receipts + fired.flush(trainable.clock)


def own_dqn(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
    wide_env.register()
    agent = {"network": "mlp", "batch_size": 8, "buffer_size": 100, "initial_steps": 10}
    config = {
        "kind": "dqn",
        "threads": 1,
        "device": "cpu",
        "total": "40 env_steps",
        "env": {"id": f"gym/{wide_env.ID}", "num_envs": 2},
        "agent": agent,
    }
    return drive(config, hooks, weights)


def own_sac(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
    return drive(small_sac(total="60 env_steps"), hooks, weights)


def own_supervised(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
    model = {"name": "mlp", "hidden": [256, 256]}
    stream = {"name": "warm_start", "fraction": 0.4, "epochs": 1}
    return drive(small_supervised(model=model, stream=stream, penalties=[]), hooks, weights)


def own_gpt(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
    config = {
        "kind": "gpt",
        "threads": 1,
        "device": "cpu",
        "model": {"layers": 1, "heads": 2, "width": 8, "context": 16, "vocab_size": 256},
        "corpora": {"stdlib": "embedded/stdlib"},
        "phases": [{"updates": UPDATES, "mixture": {"stdlib": 1}}],
        "batch_size": 2,
    }
    return drive(config, hooks, weights)


def in_sb3(name: str) -> Host:
    def run(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
        from rlplast.adapters.sb3 import HookCallback

        layers = [256, 256] if name == "DQN" else [16, 16]
        policy = {"net_arch": layers, "activation_fn": nn.ReLU}
        model, callback = sb3_model(name, policy_kwargs=policy), HookCallback(hooks)
        for net in (model.q_net, model.q_net_target) if name == "DQN" else ():
            give(net, weights)
        model.learn(64, callback=callback)
        return callback.receipts

    return run


def in_trainer(host: str) -> Host:
    def run(hooks: Path, folder: Path, weights: list[Tensor] | None) -> list[Receipt]:
        callback = hook_callback(host, hooks, networks={"model": "net"})
        Fit(host, folder, mlp(weights), callback).train()
        return callback.receipts

    return run


HOSTS: dict[str, Host] = {
    "dqn": own_dqn,
    "sac": own_sac,
    "supervised": own_supervised,
    "gpt": own_gpt,
    "sb3_dqn": in_sb3("DQN"),
    "sb3_sac": in_sb3("SAC"),
    "sb3_td3": in_sb3("TD3"),
    "sb3_tqc": in_sb3("TQC"),
    "sb3_ppo": in_sb3("PPO"),
    "hf_trainer": in_trainer("hf"),
    "lightning": in_trainer("lightning"),
}
MLP_HOSTS = ("dqn", "supervised", "sb3_dqn", "hf_trainer", "lightning")
WITHOUT_ORDER = ("gpt",)
