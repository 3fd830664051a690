"""What all agents that learn from a replay share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplast.agents.agent import MOST, Agent
from rlplast.agents.categorical import Categorical
from rlplast.agents.encoders import shift
from rlplast.agents.experience import Experience
from rlplast.agents.off_policy_config import OffPolicyConfig
from rlplast.agents.overestimation import Values
from rlplast.agents.replay import Batch, EmptyReplay, Replay
from rlplast.agents.tasks import Tasks
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream

__all__ = ["OffPolicyAgent"]

NBYTES = 4 << 20  # what batches that are drawn at once may take


class OffPolicyAgent(Agent):
    """An agent with its environments and replay; a `Trainable` but for networks and losses."""

    def __init__(
        self,
        config: OffPolicyConfig,
        tasks: Tasks,
        device: torch.device,
        clip_rewards: bool = False,
    ) -> None:
        values = config.agent.values
        self.categorical = None if values is None else Categorical(values, device)
        if self.categorical is not None:
            self.means = (*self.means, "train/clipped")
        super().__init__(config, tasks, device)
        if config.agent.random_shift and len(self.spec.stacked_shape) != 3:
            raise ConfigError(
                f"agent.random_shift = {config.agent.random_shift}: env {self.spec.id!r} gives no "
                f"pictures (bytes with two or three axes) but {self.spec.obs_dtype} of shape "
                f"{self.spec.stacked_shape}; allowed is 0"
            )
        rng = self.streams.numpy("replay")
        self.experience = Experience(config, tasks, rng, device, clip_rewards)
        # Batches that are drawn together take memory, and gain nothing on a GPU.
        singly = device.type != "cpu" or config.agent.anneal is not None
        most = min(MOST, NBYTES // self.experience.replay.batch_nbytes)
        self._most = 1 if singly else max(1, most)

    def owed(self) -> int:
        """Return how many updates are owed that `update` can make at once."""
        return min(self.experience.owed(), self._most)

    def update(self, count: int = 1) -> None:
        """Draw batches, and update all networks on each."""
        learns: dict[str, Callable[[Any], Any]] = {}  # of parts that were learnt in this block
        for drawn in self._drawn(count):
            part, batch = self._part(), self._batch(drawn)
            learn = learns.get(part.__name__) or self._learns(part)
            self._update(learn, batch)
            learns[part.__name__] = getattr(learn, "again", learn)

    def _part(self) -> Callable[[Any], Any]:
        return self.learn

    def _batch(self, batch: Batch) -> Any:
        """Return what an update on transitions reads."""
        return batch

    def _steps_of_schedule(self) -> int:
        """Return the env_steps that count for random actions: of this task, or of the run."""
        restarts = self.sequence.switch.explore != "keep"
        start = self.sequence.start(self.clock.phase) if restarts else 0
        return self.clock.env_steps - start

    def _acts_randomly(self) -> bool:
        return self._steps_of_schedule() < self.config.agent.initial_steps

    def _horizon(self) -> tuple[int, float]:
        """Return n and γ of the next update."""
        agent = self.config.agent
        if agent.anneal is None:
            return agent.n_step, agent.gamma
        return agent.anneal.at(self.clock.updates, agent.n_step, agent.gamma)

    def replay(self) -> Replay:
        """Return the replay, whose windows are those of the next update."""
        if self.config.agent.anneal is not None:
            self.experience.replay.look_ahead(*self._horizon())
        return self.experience.replay

    def _drawn(self, count: int) -> list[Batch]:
        """Draw the next transitions, and move their pictures if the config says so."""
        batches, most = self.replay().sample_block(count), self.config.agent.random_shift
        for batch in batches if most else ():
            shape = (2, len(batch.obs), 2)
            drawn = self.streams.numpy("random_shift").integers(0, 2 * most + 1, shape)
            for pictures, offsets in zip((batch.obs, batch.obs_next), drawn, strict=True):
                shift(pictures, on_device(offsets, self.device), most)
        return batches

    def _update(self, learn: Callable[[Any], Any], batch: Any) -> None:
        super()._update(learn, batch)
        self.experience.credit -= 1

    def _autocast(self) -> torch.autocast:
        enabled = self.config.agent.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def _mean(self, output: Tensor) -> Tensor:
        """Return values: of categorical ones the means."""
        return output if self.categorical is None else self.categorical.mean(output)

    def _values(self) -> Values | None:
        if not self.config.evaluate.overestimation:
            return None

        def q(obs: np.ndarray, actions: np.ndarray | None) -> np.ndarray:
            return self._q(obs, self._act_greedily(obs) if actions is None else actions)

        return Values(q, self._horizon()[1], self.experience.clip_rewards)

    @abstractmethod
    def _q(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return Q(s, a), (batch,), for stacked observations and actions."""

    def metrics(self) -> dict[str, float]:
        """Return means since the last call, and with ``agent.anneal`` n and γ of the next update.

        With ``agent.values`` the share of targets outside its range is in ``train/clipped``.
        """
        moving = {}
        if self.config.agent.anneal is not None:
            moving = dict(zip(("train/n_step", "train/gamma"), self._horizon(), strict=True))
        return moving | super().metrics()

    def sample(self, size: int, number: int) -> Any:
        """Return a probe batch from a stream of its own, or None before there is data."""
        rng = numpy_stream(self.config.seed, "probe", number)
        try:
            return self._batch_of(self.replay().sample_from(size, rng), rng)
        except EmptyReplay:
            return None

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Any]:
        """Yield batches of the replay: `count` draws, or every transition once."""
        rng = numpy_stream(self.config.seed, "batches", number)
        batches = self.replay().batches(count, size, rng)
        return (self._batch_of(batch, rng) for batch in batches)

    def _batch_of(self, batch: Batch, rng: np.random.Generator) -> Any:
        return batch

    def save_files(self, previous: Path | None) -> Callable[[Path], None]:
        """Return what writes the replay as it is now; it shares the files of `previous`."""
        return self.experience.save_files(previous)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes to print when a run begins."""
        return self.experience.replay.notes
