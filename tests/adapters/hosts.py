"""Other people's trainers, in runs of a second, that hooks are put into."""

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplast.adapters.driver import Driver
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.trained import find_networks
from rlplast.core.clock import Clock
from rlplast.core.network.network import Network

UPDATES = 20
# What reads at every update, and what at some: with and without a reset of any unit.
CBP = {"method": "cbp", "every": "1 updates", "params": {"maturity": 2, "replacement_rate": 0.02}}
REDO = {"method": "redo", "every": "7 updates", "params": {"probe": 16}}
NEVER = CBP | {"params": {"replacement_rate": 0.0}}
IDLE = NEVER | {"every": "3 updates"}
QUIET_LIGHTNING = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        r".isinstance\(treespec, LeafSpec\)",  # Lightning's own use of torch's pytrees
        "The 'train_dataloader' does not have many workers",  # on machines with many cores
        "Checkpoint directory",
        "Be aware that when using `ckpt_path`",
    )
]


@torch.no_grad()
def silence(network: Network, units: int = 2) -> None:
    for group in network.units().groups:
        group.incoming[1].block.view[:units] = -1e3


def net() -> nn.Sequential:
    """A network with silent units."""
    torch.manual_seed(4)
    layers = [nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10)]
    found = nn.Sequential(*layers)
    silence(Network("model", found))
    return found


def state(optimizers: Any, module: nn.Module) -> dict[str, Tensor]:
    found = dict(module.state_dict())
    for number, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            found |= {f"{number}/{index}/{k}": v for k, v in values.items()}
    return {k: torch.as_tensor(v).clone() for k, v in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


def books(driver: Driver) -> dict[str, Tensor]:
    """The tensors that methods keep."""
    hooks = driver.state_dict()["hooks"]
    every = [h["states"] for h in hooks.values() if isinstance(h, dict) and "states" in h]
    return {f"{i}/{k}": v for i, h in enumerate(every) for ts in h.values() for k, v in ts.items()}


def has_hooks(*modules: nn.Module) -> bool:
    every = [part for module in modules for part in module.modules()]
    return any(part._forward_hooks or part._forward_pre_hooks for part in every)


# A loop of plain torch


def begun(hooks: Any, module: nn.Module, optimizer: Any, shards: int = 1, **options: Any) -> Driver:
    driver = Driver(hooks, "10 updates", **options)
    begin(driver, module, optimizer, shards)
    return driver


def begin(driver: Driver, module: nn.Module, optimizer: Any, shards: int = 1) -> None:
    networks = find_networks(module, [optimizer], None)
    fresh = driver.clock == Clock() and driver.loaded is None
    steps = {optimizer: lambda: True}
    about: dict[str, Any] = {"units": (), "source": LastBatch(networks), "shards": shards}
    driver.begin(networks, lambda: steps, Clock(), None, fresh=fresh, **about)


# Stable-Baselines3, which writes into the policy_kwargs it is given: each gets its own.


class Wide(gymnasium.Env):
    """64 random numbers per step and ten actions that change nothing; never ends by itself."""

    observation_space: Any = spaces.Box(-1, 1, (64,), np.float32)
    action_space: Any = spaces.Discrete(10)

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 64).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        obs = self._obs()
        return obs, float(obs[0]) if isinstance(obs, np.ndarray) else 1.0, False, False, {}


class WideControl(Wide):
    action_space = spaces.Box(-1, 1, (3,), np.float32)


class Pixels(Wide):
    """Pictures without a reward."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def _obs(self) -> Any:
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, False, {}


class PixelControl(Pixels):
    action_space = WideControl.action_space


def limited(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(env, 8)


RELU: dict[str, Any] = {"net_arch": [12, 12], "activation_fn": nn.ReLU}
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
    "RecurrentPPO": {"n_steps": 8, "batch_size": 8, "n_epochs": 1},
}


def sb3_model(name: str, env: Any = None, policy: str = "MlpPolicy", **options: Any) -> Any:
    """An algorithm of Stable-Baselines3 or sb3-contrib, with one hidden layer of 8 units."""
    import sb3_contrib
    import stable_baselines3

    algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 1, "device": "cpu"}
    settings |= SETTINGS.get(name, REPLAY) | options
    if name == "RecurrentPPO":
        policy = "MlpLstmPolicy"
        settings["policy_kwargs"] = {"lstm_hidden_size": 8} | settings["policy_kwargs"]
    if env is None:
        env = limited(Wide() if name in SETTINGS else WideControl())
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


def loader(seed: int = 2) -> Any:
    """Batches in an order of their own, the same in every epoch and process."""
    data, generator = rows(), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator).tolist()
    return torch.utils.data.DataLoader([data[i] for i in order], batch_size=8)


# Both of them


class Killed(Exception):
    """Ends a run that is interrupted."""


def killer(host: str, step: int) -> Any:
    """A callback that ends training after an update."""
    import lightning.pytorch as pl
    from transformers import TrainerCallback

    def end(self: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> None:
        if (second if host == "hf" else first).global_step == step:
            raise Killed

    if host == "hf":
        return type("Killer", (TrainerCallback,), {"on_step_end": end})()
    return type("Killer", (pl.Callback,), {"on_train_batch_end": end})()


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
    """The `HookCallback` of a trainer, on the network of `Fit`."""
    from rlplast.adapters import hf_trainer, lightning

    options = {"networks": {"model": "net"}} | options
    return (hf_trainer if host == "hf" else lightning).HookCallback(*args, **options)
