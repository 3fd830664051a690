"""A Trainable of a few dozen numbers, with streams, files, a target and dropout."""

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import Interrupted
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.network import Network
from rlplast.core.rng import Streams, numpy_stream, torch_stream
from rlplast.training import checkpoint
from rlplast.training.loop import Intervals, Loop
from rlplast.training.run_folder import RunFolder
from rlplast.training.signals import stop_if_asked
from rlplast.training.trainable import Trainable
from tests.runs import Killed, at_step, kill, stop

STEPS = 24  # of a run of 16 env_steps and 8 updates

HOOKS: tuple[dict[str, Any], ...] = (
    {"method": "fire", "at": "50%"},
    {"method": "shrink_perturb", "at": ["25%", "75%"], "params": {"init": "fresh"}},
    {"method": "swr", "every": "1 updates", "from": "25%", "params": {"coef": 0.1}},
    {"method": "head_reset", "every": "5 updates", "params": {"init": "fresh"}},
)


class Toy(Trainable):
    """Regression on points drawn one per env_step; half an update per env_step."""

    units: tuple[str, ...] = ("updates", "env_steps")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.streams = Streams(seed)
        self.module = nn.Sequential(
            nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        )
        self.target = copy.deepcopy(self.module).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=1e-2)
        net = Network("net", self.module, self.optimizer, {"target": self.target})
        net.initialise(torch_stream(seed, "init"))
        self.networks = {"net": net}
        self.clock, self.updaters = Clock(), {}
        self.penalties = Penalties([], self.networks)
        self.points: list[np.ndarray] = []
        self.losses: list[float] = []
        self.lr_scale = 1.0

    def owes(self) -> bool:
        return 2 * self.clock.updates + 2 <= self.clock.env_steps

    def step(self) -> None:
        if not self.owes():
            self.points.append(self.streams.numpy("environment").normal(size=3))
            self.clock = self.clock.advance(env_steps=1)
            return
        picks = self.streams.numpy("replay").integers(len(self.points), size=2)
        batch = torch.from_numpy(np.stack([self.points[i] for i in picks])).float()
        self.optimizer.zero_grad()
        loss = self._loss_on("net", batch) * self.lr_scale
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.clock = self.clock.advance(updates=1)
        self.after_update(self.clock, {})
        if self.clock.updates % 3 == 0:
            self.target.load_state_dict(self.module.state_dict())

    def _loss_on(self, network: str, batch: Tensor) -> Tensor:
        return F.mse_loss(self.module(batch), self.target(batch)[:, [1, 0]] + 1)

    def _outputs_on(self, network: str, batch: Tensor, module: nn.Module) -> Tensor:
        return module(batch)

    def _activations_on(self, network: str, batch: Tensor) -> dict[str, Tensor]:
        return {"0": F.relu(self.module[0](batch))}

    def sample(self, size: int, number: int) -> Tensor:
        return torch.randn(size, 3, generator=torch_stream(self.seed, "probe", number))

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Tensor]:
        streams = (torch_stream(self.seed, "batches", number, i) for i in numbers())
        endless = (torch.randn(size, 3, generator=stream) for stream in streams)
        return islice(endless, len(self.points) // size if count is None else count)

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        noise = numpy_stream(self.seed, "evaluation", number).normal(size=(episodes, 3))
        return {"score": self.loss("net", torch.from_numpy(noise).float()).item()}

    def metrics(self) -> dict[str, float]:
        values = {"train/loss": float(np.mean(self.losses))} if self.losses else {}
        self.losses = []
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"streams": self.streams.state_dict(), "losses": self.losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.streams.load_state_dict(state["streams"])
        self.losses = list(state["losses"])

    def save_files(self, previous: Path | None) -> Callable[[Path], None]:
        points = np.array(self.points)
        return lambda folder: np.save(folder / "points.npy", points)

    def load_files(self, folder: Path) -> None:
        self.points = list(np.load(folder / "points.npy"))


def every(period: str | None, total: str) -> Schedule | None:
    if period is None:
        return None
    return Schedule.parse({"every": period}, Time.parse(total))


def loop(
    folder: Path,
    total: str = "16 env_steps",
    hooks: tuple[dict[str, Any], ...] = HOOKS,
    log: str = "3 env_steps",
    save: str = "4 env_steps",
    evaluate: str | None = "3 updates",
    metrics: str | None = "5 env_steps",
    keep: int = 2,
) -> Loop:
    """Return a loop over a new toy, resumed from what is in the folder."""
    toy = Toy()
    logged, saved = every(log, total), every(save, total)
    assert logged is not None and saved is not None
    made = Loop(
        trainable=toy,
        hooks=Hooks(hooks, toy.networks, total, toy.seed, toy.units),
        total=Time.parse(total),
        folder=RunFolder(folder),
        intervals=Intervals(
            logged,
            every(evaluate, total),
            every(metrics, total),
            saved,
            episodes=2,
            keep=keep,
        ),
        measure=lambda t, number: {"metric/loss": t.loss("net", t.sample(4, number)).item()},
    )
    if any((folder / "checkpoints").glob("step-*")):
        made.load(checkpoint.newest(folder / "checkpoints")[0])
    else:
        made.folder.cut(dict.fromkeys(made.folder.lengths(), 0))
    return made


def run(made: Loop) -> Toy:
    """Run a loop to its end, whatever that is, and close its folder."""
    try:
        made.run()
    finally:
        made.folder.close()
    toy = made.trainable
    assert isinstance(toy, Toy)
    return toy


def killed(made: Loop, step: int) -> None:
    """Run a loop that is killed after a step."""
    made.observer = at_step(step, kill)
    with pytest.raises(Killed):
        run(made)


def stopped_in_evaluation(made: Loop, number: int) -> None:
    """Run a loop to its n-th evaluation, in which a signal stops it."""

    def play(toy: Toy, seed: int, episodes: int) -> dict[str, float]:
        nonlocal left
        left -= 1
        if left == 0:
            stop()
        stop_if_asked()
        return evaluate(toy, seed, episodes)

    left, evaluate = number, Toy.evaluate
    with (
        mock.patch.object(Toy, "evaluate", play),
        pytest.raises(Interrupted, match="stopped by SIGTERM; checkpoint saved"),
    ):
        run(made)
    assert left == 0


def killed_and_resumed(make: Callable[[], Loop], step: int) -> None:
    """Run a loop that is killed after a step, then another one to its end."""
    killed(make(), step)
    run(make())


def interrupted_and_resumed(make: Callable[[], Loop], times: int) -> None:
    """Run loops that are stopped after a single step each, then another one to its end."""
    for _ in range(times):
        made = make()
        made.observer = stop
        with pytest.raises(Interrupted):
            run(made)
    run(make())


def assert_same_training(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Assert that two runs left the same, whatever else the hooks of the first have saved."""
    tensors = safetensors.torch.load(left["tensors.safetensors"])
    for name, tensor in safetensors.torch.load(right["tensors.safetensors"]).items():
        assert torch.equal(tensors[name], tensor), name
    for name in ("metrics", "receipts", "points.npy"):
        assert left[name] == right[name]


class Attention(nn.Module):
    """A packed projection, and a layer that only has the name of one."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.c_attn = nn.Linear(d, 3 * d)
        self.qkv = nn.Linear(d, 2 * d)  # the name alone does not make it packed
