"""SAC: soft actor-critic from replay at any replay ratio, with SimBa networks or plain MLPs.

Source: Haarnoja et al. 2018 (arXiv:1812.05905); sizes, initializers, normalisation and the order
of updates of SimBa (Lee et al. 2025), as FIRE ran it on HumanoidBench. The order is actor →
temperature → critic (new actor, new α); then the target follows.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlplast.agents.losses import q_of, tanh_gaussian
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.replay import Batch
from rlplast.agents.running_statistics import ReturnScale, RunningStatistics
from rlplast.agents.sac_config import SACConfig
from rlplast.agents.sac_networks import Temperature, actor_of, critic_of
from rlplast.agents.simba_v2 import project, unit_weights
from rlplast.core.clock import Clock
from rlplast.core.device import on_device
from rlplast.core.method.context import Activations
from rlplast.core.rng import derive_seed
from rlplast.training.trainable import Learnt

__all__ = ["SAC", "SACBatch"]


class SACBatch(NamedTuple):
    """What one update reads."""

    transitions: Batch  # with raw observations
    noise: Tensor  # (2, B, action_dim), standard normal: for the actor's loss and for the target
    members: Tensor | None = None  # (critic_subset,), whose values make the target; None for all


class SAC(OffPolicyAgent):
    """A SAC agent with its environments and replay; a `Trainable`.

    Raises:
        ConfigError: if the network does not fit the observations.
    """

    discrete = False
    means = ("train/loss", "train/loss_actor", "train/q", "train/entropy")
    saved = (*OffPolicyAgent.saved, "statistics", "return_scale")
    config: SACConfig

    def __init__(self, config: SACConfig, device: torch.device) -> None:
        super().__init__(config, device)
        agent = config.agent
        self.obs_shape, self.action_dim = self.spec.stacked_shape, self.spec.action_dim or 0
        self.normalises = agent.normalize_obs and len(self.obs_shape) == 1
        self._build_networks()
        self.statistics = RunningStatistics(self.obs_shape if self.normalises else (), device)
        self.return_scale: ReturnScale | None = None
        if agent.scale_rewards is not None:
            of_returns = config.env.num_envs, agent.gamma, agent.scale_rewards
            self.return_scale = ReturnScale(*of_returns, device)
        self.target_entropy = -agent.target_entropy_scale * self.action_dim
        self._noise = np.zeros((2, agent.batch_size, self.action_dim), np.float32)
        self.noise = torch.from_numpy(self._noise).to(device)
        subset = agent.critic_subset
        self.members = None if subset is None else torch.arange(subset, device=device)
        # Views without gradients: the actor's loss passes through the critics and stops there.
        self._critic_fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
        self._actor_loss = self._compiled(self.actor_loss)
        self._critic_loss = self._compiled(self.critic_loss)

    def _build_networks(self) -> None:
        agent, seed, sizes = self.config.agent, self.config.seed, (self.obs_shape, self.action_dim)
        seeds = [derive_seed(seed, name, "buffers") for name in ("actor", "critic")]
        critics = partial(critic_of, agent, *sizes, self.spec.obs_scale, seeds[1])
        self.critic, self.target = critics(), critics()
        self.encoder = getattr(self.critic, "encoder", None)  # of pictures; the critic's own
        self.actor = actor_of(agent, *sizes, self.critic, seeds[0])
        self.temperature = Temperature(agent.initial_temperature)
        self.temperature.requires_grad_(agent.learn_temperature)
        critic, temperature = (self.critic, self.target), (self.temperature,)
        self.build({"actor": (self.actor,), "critic": critic, "temperature": temperature})
        projected = ("actor", "critic") if agent.network == "simba_v2" else ()
        self._projected = {name: unit_weights(getattr(self, name)) for name in projected}

    def _enter_task(self) -> None:
        if self.sequence.switch.replay == "keep":  # open episodes end there as truncated
            self._observe(self.experience.obs())
        super()._enter_task()
        if self.return_scale is not None:
            self.return_scale.cut()
        if self.sequence.switch.statistics == "restart":
            self.statistics.restart()
            if self.return_scale is not None:
                self.return_scale.restart()

    def _environment_step(self) -> None:
        obs = self.experience.obs()
        self._observe(obs)
        actions = self._choose(obs)
        step = self.experience.play(actions, self.clock)
        self._observe(self.experience.truncated(step))
        self.clock = self.experience.store(actions, step, self.clock)
        if self.return_scale is not None:
            self.return_scale.update(step.reward, step.terminated | step.truncated)

    def _observe(self, obs: np.ndarray) -> None:
        """Take observations (n, ...) into the statistics: those acted on, and last ones."""
        if self.normalises and len(obs):
            self.statistics.update(obs)

    def _explore(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal((len(obs), self.action_dim), np.float32)
        return self._computed(self._action, obs, noise)

    def _action(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return one action per observation; without noise the tanh of the mean."""
        mean, log_std = self._policy(obs)
        return (mean if noise is None else mean + log_std.exp() * noise).tanh()

    def _policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        seen = self._for_actor(obs)
        with self._autocast():
            mean, log_std = self.actor(seen)
        return mean.float(), log_std.float()

    def _for_actor(self, obs: Tensor) -> Tensor:
        """Return what the actor reads for raw observations: features of pictures, not trained."""
        if self.encoder is None:
            return self._for_critic(obs)
        with torch.no_grad(), self._autocast():
            return self.encoder(obs).float()

    def _for_critic(self, obs: Tensor) -> Tensor:
        if self.normalises:
            return self.statistics.normalise(obs)
        if self.encoder is not None:  # which scales them itself
            return obs
        obs = obs.float()
        return obs if self.spec.obs_scale == 1.0 else obs * self.spec.obs_scale

    # The losses: pure functions of static tensors and of the networks' parameters.

    def actor_loss(self, batch: SACBatch) -> tuple[Tensor, Tensor, Activations]:
        """Return mean(α·log π(a|s) − min_i Q_i(s, a)), a ~ π, the policy's entropy, activations.

        With ``critic_subset`` it is the mean over i instead of the least.
        """
        obs = self._for_actor(batch.transitions.obs)
        with self._autocast():
            (mean, log_std), activations = self.call("actor", obs)
        action, log_prob = tanh_gaussian(mean.float(), log_std.float(), batch.noise[0])
        with self._autocast():
            fixed = self._critic_fixed
            if torch.compiler.is_compiling():  # inputs of a graph should not share memory
                fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
            q = functional_call(self.critic, fixed, (obs, action))
        q, alpha = self._mean(q), self.temperature().detach()
        value = q.float().amin(0) if self.members is None else q.float().mean(0)
        loss = (alpha * log_prob - value).mean()
        return loss, -log_prob.detach().mean(), activations

    def temperature_loss(self, entropy: Tensor) -> Tensor:
        """Return α·(H − H̄), whose minimiser in log α keeps the entropy H at its target H̄."""
        return (self.temperature() * (entropy - self.target_entropy)).sum()

    def critic_loss(self, batch: SACBatch) -> tuple[Tensor, Tensor, Activations]:
        """Return the sum of the critics' mean squared TD errors, what is logged, and activations.

        Logged is the mean of Q(s, a). Of categorical values the loss is the sum of mean
        cross-entropies, and logged are (2,): the mean and the share of the targets that is clipped.
        """
        data = batch.transitions
        with torch.no_grad():
            obs_next = self._for_critic(data.obs_next)
            action_next, log_prob = tanh_gaussian(*self._policy(data.obs_next), batch.noise[1])
            with self._autocast():
                q_next = self.target(obs_next, action_next)
            if batch.members is not None:
                q_next = q_next[batch.members]
            target, clipped = self._target_of(data, q_next, self.temperature() * log_prob)
        with self._autocast():
            obs = self._for_critic(data.obs)
            q, activations = self.call("critic", obs, data.action)
        q = q.float()
        if self.categorical is None or clipped is None:
            return (q - target).square().mean(1).sum(), q.detach().mean(), activations
        loss = self.categorical.cross_entropy(q, target).mean(1).sum()
        return loss, torch.stack([self.categorical.mean(q.detach()).mean(), clipped]), activations

    def _target_of(self, data: Batch, q_next: Tensor, cost: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the critics' target: a number, or probabilities of bins and what is clipped."""
        reward, scale = data.reward, self.return_scale
        if scale is not None:
            reward = reward * scale.factor
        if self.categorical is None:
            return reward + data.discount * (q_next.float().amin(0) - cost), None
        least = self.categorical.mean(q_next).argmin(0)  # of the critics, in each transition
        q_next = q_of(q_next.transpose(0, 1), least)
        return self.categorical.target(reward, data.discount, q_next, cost)

    def _part(self) -> Callable[[SACBatch], Any]:
        with_actor = (self.clock.updates + 1) % self.config.agent.actor_every == 0
        return self.learn if with_actor else self.learn_critic

    def learn(self, batch: SACBatch) -> Learnt:
        """Update actor, temperature and critics, in this order."""
        actor_loss, entropy, of_actor = self._actor_loss(batch)
        self.minimise("actor", actor_loss)
        if "temperature" in self.updaters:
            self.minimise("temperature", self.temperature_loss(entropy))
        loss, (q, *clipped), of_critic = self._minimise_critic(batch)
        values = torch.stack([loss, actor_loss.detach(), q, entropy, *clipped])
        return values, {"actor": of_actor, "critic": of_critic}

    def learn_critic(self, batch: SACBatch) -> Learnt:
        """Update the critics alone, as ``actor_every`` asks for."""
        loss, (q, *clipped), of_critic = self._minimise_critic(batch)
        zero = torch.zeros_like(q)
        return torch.stack([loss, zero, q, zero, *clipped]), {"actor": {}, "critic": of_critic}

    def _minimise_critic(self, batch: SACBatch) -> tuple[Tensor, Tensor, Activations]:
        loss, logged, activations = self._critic_loss(batch)
        self.minimise("critic", loss)
        return loss.detach(), logged.reshape(-1), activations

    def _batch(self, batch: Batch) -> SACBatch:
        """Return what an update on a batch reads, with noise in the same tensors every time."""
        self.streams.numpy("policy").standard_normal(out=self._noise, dtype=np.float32)
        if self.device.type != "cpu":
            self.noise.copy_(on_device(self._noise, self.device))
        if self.members is not None:
            count, chosen = self.config.agent.critics, len(self.members)
            drawn = self.streams.numpy("critic_subset").permutation(count)[:chosen]
            self.members.copy_(on_device(drawn, self.device))
        return SACBatch(batch, self.noise, self.members)

    def minimise(self, network: str, loss: Tensor) -> None:
        """Update a network once; rows of SimbaV2's weights have length 1 again."""
        super().minimise(network, loss)
        project(self._projected.get(network, ()))

    def _finish(self, learnt: Learnt, after: Clock) -> None:
        """Do what follows `learn` in an update; the target moves last."""
        super()._finish(learnt, after)
        self.follow("critic", self.config.agent.tau)

    def _act_greedily(self, obs: np.ndarray) -> np.ndarray:
        return self._computed(self._action, self._as_stored(obs))

    @torch.no_grad()
    def _q(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the mean over critics of Q(s, a), (batch,), in units of the reward."""
        raw = on_device(self._as_stored(obs), self.device)
        with self._autocast():
            values = self.critic(self._for_critic(raw), on_device(actions, self.device))
        q = self._mean(values).float().mean(0)
        return (q if self.return_scale is None else q / self.return_scale.factor).cpu().numpy()

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: losses, Q(s, a), entropy, return of episodes."""
        every, done, summed = self.config.agent.actor_every, self.clock.updates, self.updates_summed
        of_actor = done // every - (done - summed) // every
        values = super().metrics()
        for name in ("train/loss_actor", "train/entropy"):
            if every > 1 and name in values:  # most updates have added nothing to it
                mean = values.pop(name)
                values |= {name: mean * summed / of_actor} if of_actor else {}
        return values | {"train/temperature": float(self.temperature().detach())}

    def _batch_of(self, batch: Batch, rng: np.random.Generator) -> SACBatch:
        noise = rng.standard_normal((2, len(batch.action), self.action_dim), np.float32)
        subset, members = self.config.agent.critic_subset, None
        if subset is not None:
            members = on_device(rng.permutation(self.config.agent.critics)[:subset], self.device)
        return SACBatch(batch, on_device(noise, self.device), members)

    def _loss_on(self, network: str, batch: SACBatch) -> Tensor:
        if network == "critic":
            return self.critic_loss(batch)[0]
        loss, entropy, _ = self.actor_loss(batch)
        return loss if network == "actor" else self.temperature_loss(entropy)

    def _outputs_on(self, network: str, batch: SACBatch, module: nn.Module) -> Tensor | None:
        """Return means before tanh, (batch, action_dim), or values of the batch's actions."""
        if network == "temperature":
            return None
        data = batch.transitions
        if network == "actor":
            return module(self._for_actor(data.obs))[0]
        return self._mean(module(self._for_critic(data.obs), data.action)).mT

    def load_files(self, folder: Path) -> None:
        """Read the replay; open episodes that cannot go on end as truncated."""
        if self.experience.env.restarts:
            self._observe(self.experience.obs())
        super().load_files(folder)
