"""DQN: Q-learning from replay with a target network, at any replay ratio.

Source: Mnih et al. 2015; defaults of FIRE's DQN and Dopamine. The update is one function
of static tensors (`td_loss`), eager or compiled.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplast import envs
from rlplast.agents.dqn_config import DQNConfig
from rlplast.agents.evaluation import Evaluation, evaluate_policy, evaluating
from rlplast.agents.experience import Experience
from rlplast.agents.losses import huber, q_of, td_target
from rlplast.agents.networks import QNetwork, architecture
from rlplast.agents.off_policy_config import updates_planned
from rlplast.agents.replay import Batch
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.method.install import install_methods
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.network.optimizers import Updater
from rlplast.core.rng import Streams, numpy_stream, torch_stream
from rlplast.core.training.trainable import AfterUpdate, no_hooks

__all__ = ["DQN"]


class DQN:
    """A DQN agent with its environments and replay; a `Trainable`.

    Args:
        config: a checked config.
        device: where networks live and updates run.
    """

    units: tuple[str, ...] = DQNConfig.units

    def __init__(self, config: DQNConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        agent, seed = config.agent, config.seed
        self.streams = Streams(seed)
        clip = agent.clip_rewards
        self.experience = Experience(
            config.env,
            agent,
            config.replay_ratio,
            seed,
            self.streams.numpy("replay"),
            device,
            config.env.id.startswith("atari/") if clip is None else clip,
        )
        self.spec = self.experience.spec
        self.num_actions = _discrete(self.spec)
        self.online, self.target = self._q_network(), self._q_network()
        self.target.requires_grad_(False)
        if agent.precision == "bf16":  # autocast would round its weights anew at every update
            self.target.bfloat16()
        install_methods(config.layers, config.hooks, {"q": (self.online, self.target)}, seed)
        self.updater = Updater(config.optimizer, self.online)
        q = Network("q", self.online, self.updater.optimizers, {"target": self.target})
        q.initialise(torch_stream(seed, "init", "q"))
        self.networks = {"q": q}
        self.penalties = Penalties(config.penalties, self.networks)
        self.clock, self.updates_planned = Clock(), updates_planned(config)
        self.after_update: AfterUpdate = no_hooks
        self.recorded: frozenset[str] = frozenset()
        self._followed = list(q.followed())
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.updates_summed = 0
        compiled = agent.accelerate == "compile"
        self._td_loss = torch.compile(self.td_loss, dynamic=False) if compiled else self.td_loss

    def _q_network(self) -> QNetwork:
        spec, agent = self.spec, self.config.agent
        stacked = (spec.frame_stack, *spec.obs_shape) if spec.frame_stack > 1 else spec.obs_shape
        scale = 1 / 255 if spec.id.startswith("atari/") else 1.0
        arch = architecture(agent.network, stacked)
        network = QNetwork(arch, stacked, self.num_actions, scale, agent.init).to(self.device)
        if arch.convs:
            network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return network

    # One step: a vector environment step, or one update.

    def step(self) -> None:
        """Do one update if one is owed, else one step of every environment."""
        if self.owes():
            self._update()
        else:
            self._environment_step()

    def owes(self) -> bool:
        """Whether an update is due before the next environment step."""
        return self.experience.owes()

    def _environment_step(self) -> None:
        before, every = self.clock.env_steps, self.config.agent.target_every
        actions = self._act(
            self.experience.obs(), self.epsilon(), self.streams.numpy("exploration")
        )
        self.clock = self.experience.step(actions, self.clock)
        if self.clock.env_steps // every > before // every:
            self._sync_target()

    @torch.no_grad()
    def _sync_target(self) -> None:
        online = [mine.view for mine, _ in self._followed]
        target = [theirs.view for _, theirs in self._followed]
        torch._foreach_copy_(target, online)

    def epsilon(self) -> float:
        """Return the exploration rate now: linear after initial_steps, then constant."""
        agent = self.config.agent
        length = agent.epsilon_decay * self.config.env_steps_total()
        passed = max(0, self.clock.env_steps - agent.initial_steps)
        share = 1.0 if length == 0 else min(1.0, passed / length)
        return agent.epsilon_start + share * (agent.epsilon_end - agent.epsilon_start)

    @torch.no_grad()
    def _act(self, obs: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
        """Return one ε-greedy action per observation; draws do not depend on ε."""
        explore = rng.random(len(obs)) < epsilon
        random = rng.integers(self.num_actions, size=len(obs))
        if explore.all():
            return random
        network = self.target if self.config.agent.policy == "target" else self.online
        with self._autocast():
            greedy = network(torch.from_numpy(obs).to(self.device)).argmax(1).cpu().numpy()
        return np.where(explore, random, greedy)

    def _autocast(self) -> torch.autocast:
        enabled = self.config.agent.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def td_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Activations]:
        """Return the mean Huber loss and the mean Q(s, a) of a batch; writes nothing.

        Last come the online network's activations, if they are recorded.
        """
        agent = self.config.agent
        with self._autocast():
            values, found = self.online.forward_taps(batch.obs)
            q = q_of(values, batch.action).float()
            with torch.no_grad():
                q_next = self.target(batch.obs_next)
                best = self.online(batch.obs_next) if agent.double else None
        target = td_target(batch.reward, batch.discount, q_next.float(), best)
        activations = {k: v.detach() for k, v in found.items()} if "q" in self.recorded else {}
        return huber(q - target, agent.huber_delta).mean(), q.mean(), activations

    def _update(self) -> None:
        batch = self.experience.replay.sample()
        loss, q, activations = self._td_loss(batch)
        self.updater.set_lr(self.clock.updates, self.updates_planned)
        self.updater.minimise(self.penalties.add("q", loss))
        self.sums[0] += loss.detach()
        self.sums[1] += q.detach()
        self.updates_summed += 1
        self.experience.paid()
        self.clock = self.clock.advance(updates=1)
        self.after_update(self.clock, {"q": activations})

    # What the loop asks for.

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return scores of unclipped full episodes."""
        return self.play(number, episodes).scores()

    def play(
        self, number: int, episodes: int, on_frame: Callable[[np.ndarray], None] | None = None
    ) -> Evaluation:
        """Play full episodes with the evaluation's ε; see `evaluate_policy`."""
        seed, epsilon = self.config.seed, self.config.agent.epsilon_eval
        rng = numpy_stream(seed, "evaluation", number, "policy")
        with evaluating(self.online, self.target):
            return evaluate_policy(
                self.config.env,
                lambda obs: self._act(obs, epsilon, rng),
                episodes,
                lambda i: numpy_stream(seed, "evaluation", number, i),
                on_frame,
            )

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: loss, Q(s, a), return of finished episodes.

        ``train/loss`` is the TD loss alone; penalties, if any, are ``train/penalty``.
        """
        values = {"train/epsilon": self.epsilon()} | self.experience.episode_metrics()
        if self.updates_summed:
            loss, q = (self.sums / self.updates_summed).tolist()
            values |= {"train/loss": loss, "train/q": q}
            values |= self.penalties.metrics(self.updates_summed)
        self.sums.zero_()
        self.updates_summed = 0
        return values

    def sample(self, size: int, number: int) -> Batch | None:
        """Return a probe batch from a stream of its own, or None before there is data."""
        replay = self.experience.replay
        if replay.size == 0:
            return None
        return replay.sample_from(size, numpy_stream(self.config.seed, "probe", number))

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Batch]:
        """Yield batches of the replay: `count` draws, or every transition once."""
        replay = self.experience.replay
        return replay.batches(count, size, numpy_stream(self.config.seed, "batches", number))

    def loss(self, network: str, batch: Batch, train: bool = False) -> Tensor:
        """Return the TD loss of a batch, without penalties."""
        return self.td_loss(batch)[0]

    @torch.no_grad()
    def activations(self, network: str, batch: Batch) -> Activations:
        """Return hidden activations of the online network on a batch's observations."""
        return self.online.forward_taps(batch.obs)[1]

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return greedy actions for observations (batch, ...), stacked as in training.

        Raises:
            ConfigError: if the observations have another shape.
        """
        obs = np.asarray(obs)
        expected = self.experience.obs().shape[1:]
        if obs.shape[1:] != expected or obs.ndim != len(expected) + 1:
            raise ConfigError(
                f"obs has shape {obs.shape}: allowed is (batch, {', '.join(map(str, expected))})"
            )
        return self._act(obs, 0.0, numpy_stream(self.config.seed, "act"))

    def state_dict(self) -> dict[str, Any]:
        """Return streams, environments, frame stacks, counters and sums."""
        return {
            "streams": self.streams.state_dict(),
            "experience": self.experience.state_dict(),
            "sums": self.sums,
            "updates_summed": self.updates_summed,
            "penalties": self.penalties.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay follows in `load_files`."""
        self.streams.load_state_dict(state["streams"])
        self.experience.load_state_dict(state["experience"])
        self.sums.copy_(state["sums"])
        self.updates_summed = state["updates_summed"]
        self.penalties.load_state_dict(state.get("penalties", {}))

    def save_files(self, previous: Path | None) -> Callable[[Path], None]:
        """Return what writes the replay as it is now; it shares the files of `previous`."""
        return self.experience.save_files(previous)

    def load_files(self, folder: Path) -> None:
        """Read the replay, or map it; see `Replay.load`."""
        self.experience.load_files(folder)

    def close(self) -> None:
        """Close the environments and their processes."""
        self.experience.close()


def _discrete(spec: envs.EnvSpec) -> int:
    """Return the number of actions.

    Raises:
        ConfigError: if actions are continuous.
    """
    if spec.num_actions is None:
        raise ConfigError(
            f"env {spec.id!r} has {spec.action_dim} continuous actions: kind: dqn needs discrete "
            "ones; use kind: sac"
        )
    return spec.num_actions
