"""DQN: Q-learning from replay with a target network, at any replay ratio.

Source: Mnih et al. 2015; defaults of FIRE's DQN and Dopamine.
"""

import numpy as np
import torch
from torch import Tensor, nn

from rlplast.agents.dqn_config import DQNConfig
from rlplast.agents.losses import huber, q_of, td_target
from rlplast.agents.networks import q_network
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.replay import Batch
from rlplast.core.device import on_device
from rlplast.core.method.context import Activations
from rlplast.core.rng import derive_seed, numpy_stream

__all__ = ["DQN"]


class DQN(OffPolicyAgent):
    """A DQN agent with its environments and replay; a `Trainable`."""

    discrete = True
    means = ("train/loss", "train/q")
    config: DQNConfig

    def __init__(self, config: DQNConfig, device: torch.device) -> None:
        super().__init__(config, device)
        agent = config.agent
        self.online, self.target = self._q_network(), self._q_network()
        # Autocast would round its weights anew at every update; small moves would round to none.
        if agent.precision == "bf16" and agent.tau == 1:
            self.target.bfloat16()
        self.build({"q": (self.online, self.target)})
        self._td_loss = self._compiled(self.td_loss)

    def _q_network(self) -> nn.Module:
        spec, agent = self.spec, self.config.agent
        self.num_actions = spec.num_actions or 0
        seed = derive_seed(self.config.seed, "q", "buffers")
        network = q_network(agent, spec.stacked_shape, self.num_actions, spec.obs_scale, seed)
        if any(isinstance(module, nn.Conv2d) for module in network.modules()):
            network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return network

    def _environment_step(self) -> None:
        before, every = self.clock.env_steps, self.config.agent.target_every
        super()._environment_step()
        for _ in range(self.clock.env_steps // every - before // every):
            self.follow("q", self.config.agent.tau)

    def epsilon(self) -> float:
        """Return ε of the policy now: linear after initial_steps, then constant.

        In a sequence whose exploration restarts, it falls over a share of each task.
        """
        agent, sequence = self.config.agent, self.sequence
        taken, whole = self._steps_of_schedule(), self.config.env_steps_total()
        if sequence.each is not None and sequence.switch.explore == "restart":
            whole = sequence.each
        elif taken >= agent.initial_steps:
            taken = self.clock.env_steps
        length = agent.epsilon_decay * whole
        passed = max(0, taken - agent.initial_steps)
        share = 1.0 if length == 0 else min(1.0, passed / length)
        return agent.epsilon_start + share * (agent.epsilon_end - agent.epsilon_start)

    def _random(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._act(obs, 1.0, rng)

    def _explore(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._act(obs, self.epsilon(), rng)

    def _act(self, obs: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
        """Return one ε-greedy action per observation; draws do not depend on ε."""
        drawn = 1 if self.config.agent.exploration == "shared" else len(obs)
        explore = np.broadcast_to(rng.random(drawn) < epsilon, len(obs))
        random = rng.integers(self.num_actions, size=len(obs))
        if explore.all():
            return random
        return np.where(explore, random, self._computed(self._greedy, obs))

    def _greedy(self, obs: Tensor) -> Tensor:
        with self._autocast():
            return self._mean(self.online(obs)).argmax(1)

    def td_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Activations]:
        """Return the mean Huber loss, what is logged, and activations if they are recorded.

        Logged is the mean Q(s, a). Of categorical values the loss is the mean cross-entropy, and
        logged are (2,): the mean Q(s, a) and the share of the targets that is clipped.
        """
        agent, categorical = self.config.agent, self.categorical
        with self._autocast():
            values, activations = self.call("q", batch.obs)
            q = q_of(values, batch.action).float()
            with torch.no_grad():
                q_next = self.target(batch.obs_next)
                best = self.online(batch.obs_next) if agent.double else None
        if categorical is None:
            target = td_target(batch.reward, batch.discount, q_next.float(), best)
            return huber(q - target, agent.huber_delta).mean(), q.mean(), activations
        with torch.no_grad():
            chosen = categorical.mean(q_next if best is None else best).argmax(1)
            q_next = q_of(q_next, chosen)
            target, clipped = categorical.target(batch.reward, batch.discount, q_next)
            logged = torch.stack([categorical.mean(q).mean(), clipped])
        return categorical.cross_entropy(q, target).mean(), logged, activations

    def learn(self, batch: Batch) -> tuple[Tensor, dict[str, Activations]]:
        """Update the online network."""
        loss, logged, activations = self._td_loss(batch)
        self.minimise("q", loss)
        return torch.stack([loss.detach(), *logged.detach().reshape(-1)]), {"q": activations}

    def _act_in_evaluation(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._act(obs, self.config.agent.epsilon_eval, rng)

    def _act_greedily(self, obs: np.ndarray) -> np.ndarray:
        return self._act(obs, 0.0, numpy_stream(self.config.seed, "act"))

    @torch.no_grad()
    def _q(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        with self._autocast():
            values = self._mean(self.online(on_device(obs, self.device)))
        return q_of(values, on_device(actions, self.device)).float().cpu().numpy()

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: TD loss, Q(s, a), return of finished episodes."""
        epsilon = 1.0 if self._acts_randomly() else self.epsilon()
        return {"train/epsilon": epsilon} | super().metrics()

    def _loss_on(self, network: str, batch: Batch) -> Tensor:
        return self.td_loss(batch)[0]

    def _outputs_on(self, network: str, batch: Batch, module: nn.Module) -> Tensor:
        """Return the values of all actions, (batch, actions)."""
        return self._mean(module(batch.obs))
