"""What all agents that learn from a replay share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplast.agents.agent import MOST, Agent
from rlplast.agents.categorical import Categorical
from rlplast.agents.encoders import shift
from rlplast.agents.experience import Experience
from rlplast.agents.off_policy_config import OffPolicyConfig
from rlplast.agents.overestimation import Values
from rlplast.agents.replay import Batch, EmptyReplay, Replay
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import numpy_stream

__all__ = ["OffPolicyAgent"]

NBYTES = 4 << 20  # what batches that are drawn at once may take


class OffPolicyAgent(Agent):
    """An agent with its environments and replay; a `Trainable` but for networks and losses."""

    def __init__(self, config: OffPolicyConfig, device: torch.device) -> None:
        values = config.agent.values
        self.categorical = None if values is None else Categorical(values, device)
        if self.categorical is not None:
            self.means = (*self.means, "train/clipped")
        super().__init__(config, device)
        if config.agent.random_shift and len(self.spec.stacked_shape) != 3:
            raise ConfigError(
                f"agent.random_shift = {config.agent.random_shift}: env {self.spec.id!r} gives no "
                f"pictures (bytes with two or three axes) but {self.spec.obs_dtype} of shape "
                f"{self.spec.stacked_shape}; allowed is 0"
            )
        clip = self.clip_rewards
        self.experience = Experience(config, self.tasks, self.streams, device, clip)
        # Batches that are drawn together take memory, and gain nothing on a GPU.
        singly = device.type != "cpu" or config.agent.anneal is not None
        most = min(MOST, NBYTES // self.experience.replay.batch_nbytes)
        self._most = 1 if singly else max(1, most)

    def owed(self) -> int:
        """Return how many updates are owed that `update` can make at once."""
        return min(self.experience.owed(), self._most)

    def build(self, modules: Mapping[str, Sequence[nn.Module]]) -> None:
        """Make the networks of modules, and note what targets follow."""
        super().build(modules)
        self._followed = {n: _followed(net) for n, net in self.networks.items() if net.followers}

    @torch.no_grad()
    def follow(self, network: str, tau: float) -> None:
        """Move a network's target by τ towards it; its buffers are copied."""
        (mine, theirs), (buffers, of_target) = self._followed[network]
        if tau < 1:
            torch._foreach_lerp_(theirs, mine, tau)
        else:
            torch._foreach_copy_(theirs, mine)
        if buffers:
            torch._foreach_copy_(of_target, buffers)

    def _steps_of_schedule(self) -> int:
        """Return the env_steps that count for random actions: of this task, or of the run."""
        restarts = self.sequence.switch.explore != "keep"
        start = self.sequence.start(self.clock.phase) if restarts else 0
        return self.clock.env_steps - start

    def _acts_randomly(self) -> bool:
        return self._steps_of_schedule() < self.config.agent.initial_steps

    def _environment_step(self) -> None:
        actions = self._choose(self.experience.obs())
        step = self.experience.play(actions, self.clock)
        self.clock = self.experience.store(actions, step, self.clock)

    def _choose(self, obs: np.ndarray) -> np.ndarray:
        """Return the next actions, of which the first `initial_steps` are drawn uniformly."""
        rng = self.streams.numpy("exploration")
        return self._random(obs, rng) if self._acts_randomly() else self._explore(obs, rng)

    def _random(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.spec.action_dim is None:
            return rng.integers(self.spec.num_actions or 0, size=len(obs))
        return rng.uniform(-1, 1, (len(obs), self.spec.action_dim)).astype(np.float32)

    @abstractmethod
    def _explore(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return actions to train on, for stacked observations; draws come from `rng`."""

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

    def _drawn(self, count: int) -> Iterator[Batch]:
        """Yield the next transitions, with their pictures moved if the config says so."""
        most = self.config.agent.random_shift
        for batch in self.replay().sample_block(count):
            if most:
                shape = (2, len(batch.obs), 2)
                drawn = self.streams.numpy("random_shift").integers(0, 2 * most + 1, shape)
                for pictures, offsets in zip((batch.obs, batch.obs_next), drawn, strict=True):
                    shift(pictures, on_device(offsets, self.device), most)
            yield batch
            self.experience.credit -= 1

    def _mean(self, output: Tensor) -> Tensor:
        """Return values: of categorical ones the means."""
        return output if self.categorical is None else self.categorical.mean(output)

    def _values(self) -> Values | None:
        if not self.config.evaluate.overestimation:
            return None

        def q(obs: np.ndarray, actions: np.ndarray | None) -> np.ndarray:
            return self._q(obs, self._act_greedily(obs) if actions is None else actions)

        return Values(q, self._horizon()[1], self.clip_rewards)

    def _q(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return Q(s, a), (batch,), for stacked observations and actions.

        Raises:
            ConfigError: by default, as ``evaluate.overestimation`` alone reads it.
        """
        raise ConfigError(
            f"evaluate.overestimation = true: a {self.config.kind} run has no _q, which would say "
            "Q-values of observations and actions; leave it out"
        )

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
        before = None if previous is None else previous / "replay"
        saving = self.experience.replay.begin_save(before)
        return lambda folder: saving(folder / "replay")

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes to print when a run begins."""
        return self.experience.replay.notes


def _followed(network: Network) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return a network's parameters and its target's, and the buffers that the target follows."""
    pairs = list(network.followed())
    whole = {p.param: theirs.param for p, theirs in pairs if p.role != "buffer"}
    buffers = {p.view: theirs.view for p, theirs in pairs if p.role == "buffer"}
    return [(list(each), list(each.values())) for each in (whole, buffers)]
