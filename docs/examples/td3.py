"""TD3 as a kind of run: its networks, its losses and its update.

Source: Fujimoto et al. 2018 (arXiv:1802.09477). ``rlplast --import td3 train td3.yaml`` trains it.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from rlplast import register_kind
from rlplast.agents.networks import refuse_given
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.off_policy_config import EnvConfig, OffPolicyAgentConfig, OffPolicyConfig

register_kind("td3", config="td3:TD3Config", trainable="td3:TD3")


@dataclass
class TD3AgentConfig(OffPolicyAgentConfig):
    """The agent; noise is in units of half the actions' range."""

    width: int = 256  # units of the two hidden layers of each network
    tau: float = 0.005  # share of the networks that the targets take over
    actor_every: int = 2  # updates of the critics for one of the actor and of the targets
    noise: float = 0.1  # standard deviation of the noise on actions
    smoothing: float = 0.2  # that of the noise on the target's actions, which is within ±0.5


@dataclass
class TD3Config(OffPolicyConfig):
    """A TD3 run."""

    kind: str = "td3"
    env: EnvConfig = field(default_factory=lambda: EnvConfig("gym/Pendulum-v1"))
    agent: TD3AgentConfig = field(default_factory=TD3AgentConfig)

    def check(self):
        """Refuse keys that this agent does not read."""
        super().check()
        refuse_given(self.agent, ("values", "precision"), "a TD3 has none; leave it out")


def mlp(inputs, width, outputs):
    """Return a network with two hidden layers."""
    hidden = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


class Critics(nn.Module):
    """Two critics, as one network."""

    def __init__(self, inputs, width):
        super().__init__()
        self.q1, self.q2 = mlp(inputs, width, 1), mlp(inputs, width, 1)

    def forward(self, obs, action):
        """Return the values of both, (2, batch)."""
        x = torch.cat([obs, action], 1)
        return torch.stack([self.q1(x).squeeze(1), self.q2(x).squeeze(1)])


class TD3(OffPolicyAgent):
    """A TD3 agent with its environments and replay."""

    discrete = False
    means = ("train/loss", "train/q")  # what each update returns, in the log

    def __init__(self, config, device):
        super().__init__(config, device)
        obs, actions, width = self.spec.stacked_shape[0], self.spec.action_dim, config.agent.width
        actors = [mlp(obs, width, actions) for _ in range(2)]  # tanh stays outside
        critics = [Critics(obs + actions, width) for _ in range(2)]
        (self.actor, self.actor_target), (self.critic, self.target) = actors, critics
        self.build({"actor": actors, "critic": critics})

    def _explore(self, obs, rng):
        actions = self._act_greedily(obs)
        noise = self.config.agent.noise * rng.standard_normal(actions.shape)
        return (actions + noise).clip(-1, 1).astype(np.float32)

    def _act_greedily(self, obs):
        return self._computed(self.policy, obs)

    def policy(self, obs):
        """Return actions in [-1, 1]."""
        return self.actor(obs).tanh()

    def critic_loss(self, batch):
        """Return the critics' loss, the mean value, and activations if they are recorded."""
        with torch.no_grad():  # noise of torch's own generator, which is saved with the run
            noise = self.config.agent.smoothing * torch.randn_like(batch.action)
            action = (self.actor_target(batch.obs_next).tanh() + noise.clamp(-0.5, 0.5)).clamp(
                -1, 1
            )
            target = batch.reward + batch.discount * self.target(batch.obs_next, action).amin(0)
        q, activations = self.call("critic", batch.obs, batch.action)
        return nn.functional.mse_loss(q, target.expand_as(q)) * 2, q.detach().mean(), activations

    def actor_loss(self, batch):
        """Return the actor's loss, and activations if they are recorded."""
        action, activations = self.call("actor", batch.obs)
        fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
        return -functional_call(self.critic, fixed, (batch.obs, action.tanh()))[
            0
        ].mean(), activations

    def _part(self):
        later = (self.clock.updates + 1) % self.config.agent.actor_every
        return self.learn_critic if later else self.learn

    def learn_critic(self, batch):
        """Update the critics."""
        loss, q, activations = self.critic_loss(batch)
        self.minimise("critic", loss)
        return torch.stack([loss.detach(), q]), {"actor": {}, "critic": activations}

    def learn(self, batch):
        """Update the critics, then the actor."""
        values, activations = self.learn_critic(batch)
        loss, activations["actor"] = self.actor_loss(batch)
        self.minimise("actor", loss)
        return values, activations

    def _finish(self, learnt, after):
        super()._finish(learnt, after)  # hooks act
        if after.updates % self.config.agent.actor_every == 0:
            for name in self.networks:
                self.follow(name, self.config.agent.tau)

    def _loss_on(self, network, batch):
        return (self.critic_loss if network == "critic" else self.actor_loss)(batch)[0]

    def _outputs_on(self, network, batch, module):
        return module(batch.obs) if network == "actor" else module(batch.obs, batch.action).mT
