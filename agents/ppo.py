"""PPO: a clipped policy gradient on rollouts of several environments.

Source: Schulman et al. 2017 (arXiv:1707.06347); details and defaults of Stable-Baselines3's PPO and
VecNormalize.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.agents.agent import MOST, Agent
from rlplast.agents.draws import draw_categorical, draw_gaussian
from rlplast.agents.environments import Environments
from rlplast.agents.losses import categorical, clipped_surrogate, clipped_values, gaussian
from rlplast.agents.ppo_config import PPOConfig
from rlplast.agents.ppo_networks import networks_of
from rlplast.agents.rollout import Rollout, Transitions
from rlplast.agents.running_statistics import LIMIT, RewardScale, RunningStatistics
from rlplast.core.device import on_device
from rlplast.core.method.context import Activations
from rlplast.core.rng import numpy_stream
from rlplast.optimizers.updater import minimise_together
from rlplast.training.trainable import Learnt

__all__ = ["PPO"]

EPS = 1e-8  # added to the standard deviation of advantages
AT_ONCE = 1024  # observations that are valued at once


class PPO(Agent):
    """A PPO agent with its environments and rollout; a `Trainable`.

    Raises:
        ConfigError: if the network does not fit the observations.
    """

    means = ("train/loss", "train/loss_actor", "train/entropy", "train/kl", "train/clip_fraction")
    saved = (*Agent.saved, "rollout", "left", "statistics", "rewards")
    config: PPOConfig

    def __init__(self, config: PPOConfig, device: torch.device) -> None:
        agent, n = config.agent, config.env.num_envs
        super().__init__(config, device)
        spec, shape = self.spec, self.spec.stacked_shape
        self.normalises = agent.normalize_obs and len(shape) == 1
        self._build_networks()
        dtype = "float32" if self.normalises else spec.obs_dtype
        self.rollout = Rollout(agent.rollout_steps, n, shape, dtype, spec.action_dim, device)
        self.statistics = RunningStatistics(shape if self.normalises else ())  # on the host
        self.rewards = RewardScale(n, agent.gamma)
        self.left = 0  # updates owed for the last rollout
        self.batch = self.rollout.empty(agent.batch_size)
        self._order = torch.zeros(config.transitions, dtype=torch.int64, device=device)
        self._order_of: int | None = None
        self._actor_loss = self._compiled(self.actor_loss)
        self._critic_loss = self._compiled(self.critic_loss)
        self._shared_loss = self._compiled(self.shared_loss)
        self.experience = Environments(config, self.tasks, self.streams)
        self._observe()

    def _build_networks(self) -> None:
        agent, spec, seed = self.config.agent, self.spec, self.config.seed
        log_std = None if spec.action_dim is None else agent.log_std
        self.width = spec.num_actions or spec.action_dim or 0
        sizes = spec.stacked_shape, self.width, 1.0 if self.normalises else spec.obs_scale
        networks = networks_of(agent, *sizes, log_std, seed)
        parts = ("actor_critic", "actor_critic") if agent.shared_trunk else ("actor", "critic")
        self.actor, self.critic = (networks[part] for part in parts)
        self.build({name: (module,) for name, module in networks.items()})

    # Acting, until a rollout is full.

    def owed(self) -> int:
        """Return how many updates are owed for the last rollout, at most a block of them."""
        return min(self.left, MOST)

    def _enter_task(self) -> None:
        super()._enter_task()
        if self.sequence.switch.statistics == "restart":
            self.statistics.restart()
            self.rewards.statistics.restart()
        self.rollout.restart()
        self.rewards.begin()
        self._observe()

    def _observe(self, *last: np.ndarray) -> None:
        """Take the observations of now into the statistics, and others that networks see."""
        if self.normalises:
            self.statistics.update(np.concatenate((self.experience.obs(), *last)))

    def _seen(self, obs: np.ndarray) -> np.ndarray:
        """Return observations as the networks see them; a copy."""
        if not self.normalises:
            return obs.copy()
        return self.statistics.normalise(torch.from_numpy(obs)).numpy()

    @torch.no_grad()
    def _environment_step(self) -> None:
        experience = self.experience
        obs = self._seen(experience.obs())
        actions, log_prob = self._act(obs)
        played = actions if self.spec.action_dim is None else actions.clip(-1, 1)
        step = experience.play(played, self.clock)
        last = experience.truncated(step)
        self.clock = experience.go_on(step, self.clock)
        self._observe(last)
        ended = step.terminated | step.truncated
        reward = np.sign(step.reward) if self.clip_rewards else step.reward
        if self.config.agent.normalize_rewards:
            reward = self.rewards.scaled(reward, ended).clip(-LIMIT, LIMIT)
        self.rollout.add(obs, actions, log_prob, reward, ended)
        if len(last):
            self.rollout.cut(np.flatnonzero(step.truncated), self._seen(last))
        if self.rollout.full:
            self._finish_rollout()

    def _finish_rollout(self) -> None:
        """Value all observations of a rollout with the critic of now, and make data of it."""
        rollout, agent = self.rollout, self.config.agent
        for t, envs, obs in rollout.cuts:
            rollout.reward[t, envs] += agent.gamma * self._value(obs)
        value = self._value(rollout.obs.reshape(-1, *rollout.obs.shape[2:]))
        last = self._value(self._seen(self.experience.obs()))
        value = value.reshape(rollout.reward.shape)
        rollout.finish(value, last, agent.gae_lambda, agent.gamma)
        self.left = self.config.updates_per_rollout

    def _act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an action for each observation, drawn, and its log-probability."""
        output = self._computed(self._output, obs)
        rng, log_std = self.streams.numpy("exploration"), self.actor.log_std
        if log_std is None:
            return draw_categorical(output, rng)
        actions, log_prob = draw_gaussian(output, log_std.detach().cpu().numpy(), rng)
        return self._finite(actions), log_prob

    @torch.no_grad()
    def _value(self, obs: np.ndarray) -> np.ndarray:
        """Return values, (batch,), of observations as the networks see them."""
        parts = [obs[i : i + AT_ONCE] for i in range(0, len(obs), AT_ONCE)]
        with self._acting_mode():
            values = [self.critic(on_device(part, self.device))[:, -1] for part in parts]
        return torch.cat(values).cpu().numpy()

    # The losses: pure functions of static tensors and of the networks' parameters.

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, tuple[Tensor, ...], Activations]:
        """Return the clipped loss less the entropy's share, what is logged of it, and activations.

        Logged are the entropy, an estimate of KL(old, new) and the share of ratios beyond 1 ± ε.
        """
        output, activations = self.call("actor", batch.obs)
        return *self._policy_loss(output, batch), activations

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, Activations]:
        """Return ``value_coef`` times the mean squared error of values, and activations."""
        values, activations = self.call("critic", batch.obs)
        return self._value_loss(values.squeeze(1), batch), activations

    def shared_loss(
        self, batch: Transitions
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Activations]:
        """Return the loss of values, that of the policy, what is logged of it, and activations."""
        output, activations = self.call("actor_critic", batch.obs)
        loss_actor, logged = self._policy_loss(output[:, :-1], batch)
        loss = self._value_loss(output[:, -1], batch)
        return loss, loss_actor, logged, activations

    def _policy_loss(self, output: Tensor, batch: Transitions) -> tuple[Tensor, tuple[Tensor, ...]]:
        agent = self.config.agent
        log_std, action, advantage = self.actor.log_std, batch.action, batch.advantage
        if log_std is None:
            log_prob, entropy = categorical(output, action)
        else:
            log_prob, entropy = gaussian(output, log_std, action)
        if len(advantage) > 1:
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + EPS)
        change = log_prob - batch.log_prob
        ratio, entropy = change.exp(), entropy.mean()
        loss = clipped_surrogate(ratio, advantage, agent.clip)
        if agent.entropy_coef:
            loss = loss - agent.entropy_coef * entropy
        with torch.no_grad():
            more = ratio - 1
            kl = (more - change).mean()  # Schulman's third estimator
            clipped = (more.abs() > agent.clip).float().mean()
        return loss, (entropy.detach(), kl, clipped)

    def _value_loss(self, values: Tensor, batch: Transitions) -> Tensor:
        agent = self.config.agent
        if agent.clip_value is None:
            return agent.value_coef * F.mse_loss(values, batch.returns)
        return agent.value_coef * clipped_values(
            values, batch.value, batch.returns, agent.clip_value
        )

    def learn(self, batch: Transitions) -> Learnt:
        """Update actor and critic, whose gradients are clipped together."""
        activations: dict[str, Activations]
        if self.config.agent.shared_trunk:
            loss, loss_actor, logged, kept = self._shared_loss(batch)
            losses, activations = {"actor_critic": loss_actor + loss}, {"actor_critic": kept}
        else:
            loss_actor, logged, of_actor = self._actor_loss(batch)
            loss, of_critic = self._critic_loss(batch)
            losses = {"actor": loss_actor, "critic": loss}
            activations = {"actor": of_actor, "critic": of_critic}
        penalised = [self.penalised(network, loss) for network, loss in losses.items()]
        bound = self.config.agent.max_grad_norm
        minimise_together(list(self.updaters.values()), penalised, bound)
        return torch.stack([loss.detach(), loss_actor.detach(), *logged]), activations

    def _drawn(self, count: int) -> Iterator[Transitions]:
        """Yield the next batches, in the same tensors every time."""
        for _ in range(count):
            yield self._gathered()
            self.left -= 1

    def _gathered(self) -> Transitions:
        size, owed = self.config.agent.batch_size, self.config.updates_per_rollout
        done = -self.left % owed
        place = done % (owed // self.config.agent.epochs)
        first = self.clock.updates - place  # the clock as the epoch began
        if self._order_of != first:
            stream = numpy_stream(self.streams.seed, "minibatches", first)
            self._order.copy_(on_device(stream.permutation(len(self._order)), self.device))
            self._order_of = first
        rows = self._order[place * size : (place + 1) * size]
        for mine, whole in zip(self.batch, self.rollout.data, strict=True):
            torch.index_select(whole, 0, rows, out=mine)
        return self.batch

    def _act_greedily(self, obs: np.ndarray) -> np.ndarray:
        output = self._computed(self._output, self._seen(self._as_stored(obs)))
        return output.argmax(1) if self.spec.action_dim is None else output.clip(-1, 1)

    def _output(self, obs: Tensor) -> Tensor:
        return self.actor(obs)[:, : self.width]

    # What hooks and metrics read: the last whole rollout.

    def sample(self, size: int, number: int) -> Transitions | None:
        """Return a probe batch from a stream of its own, or None before there is data."""
        rng = numpy_stream(self.config.seed, "probe", number)
        return next(self.rollout.batches(1, size, rng)) if self.rollout.filled else None

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Transitions]:
        """Yield batches of the last rollout: `count` draws, or every transition once."""
        rng = numpy_stream(self.config.seed, "batches", number)
        return self.rollout.batches(count, size, rng)

    def _loss_on(self, network: str, batch: Transitions) -> Tensor:
        if network == "actor_critic":
            loss, loss_actor, *_ = self.shared_loss(batch)
            return loss_actor + loss
        return (self.actor_loss if network == "actor" else self.critic_loss)(batch)[0]

    def _outputs_on(self, network: str, batch: Transitions, module: nn.Module) -> Tensor:
        """Return logits, means or values, (batch, outputs)."""
        return module(batch.obs)

    def load_files(self, folder: Path) -> None:
        """Begin new episodes where open ones cannot go on: these end as truncated."""
        restarts = self.experience.env.restarts
        if restarts:
            still_open = np.flatnonzero(~self.rollout.ended[self.rollout.position - 1])
            self.rollout.cut(still_open, self._seen(self.experience.obs()[still_open]))
        super().load_files(folder)
        if restarts:
            self.rewards.begin()
            self._observe()
