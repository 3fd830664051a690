"""Slow twins of the DQN: formulas in NumPy loops, and an update written by hand in plain torch."""

import numpy as np
import torch
from torch import nn


def epsilon_twin(env_steps: int, total: int, agent) -> float:
    """Straight line from `initial_steps` on, over a share of the run, then constant."""
    first, last = agent.initial_steps, agent.initial_steps + agent.epsilon_decay * total
    return float(
        np.interp(env_steps, [first, last], [agent.epsilon_start, agent.epsilon_end])
        if last > first
        else agent.epsilon_end
    )


def syncs_twin(env_steps: int, target_every: int) -> int:
    return sum(1 for step in range(1, env_steps + 1) if step % target_every == 0)


class HandWrittenUpdate:
    """An MLP Q-network, its target and its Adam, with nothing of the agent in them."""

    def __init__(self, config, weights: dict[str, torch.Tensor]):
        self.agent, settings = config.agent, config.optimizer
        self.clip_norm = settings.clip_norm
        shapes = [weights[f"{name}.weight"].shape for name in ("fc1", "fc2", "head")]
        self.online, self.target = self.network(shapes), self.network(shapes)
        names = [
            f"{layer}.{kind}" for layer in ("fc1", "fc2", "head") for kind in ("weight", "bias")
        ]
        with torch.no_grad():
            for parameter, name in zip(self.online.parameters(), names, strict=True):
                parameter.copy_(weights[name])
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=settings.lr, eps=settings.eps, foreach=False, fused=False
        )

    def network(self, shapes) -> nn.Sequential:
        (hidden1, inputs), (hidden2, _), (actions, _) = shapes
        between = {"relu": nn.ReLU, "tanh": nn.Tanh}[self.agent.activation]
        outputs = {"linear": nn.Identity(), "softmax": nn.Softmax(1)}[self.agent.output]
        return nn.Sequential(
            nn.Linear(inputs, hidden1),
            between(),
            nn.Linear(hidden1, hidden2),
            between(),
            nn.Linear(hidden2, actions),
            outputs,
        )

    def sync(self):
        """Move the target by τ towards the online network; τ = 1 copies it."""
        tau, online = self.agent.tau, self.online.state_dict()
        moved = {
            name: (1 - tau) * theirs + tau * online[name]
            for name, theirs in self.target.state_dict().items()
        }
        self.target.load_state_dict(moved)

    def update(self, batch) -> float:
        q_next = self.target(batch.obs_next).detach()
        best = q_next.max(1).values
        if self.agent.double:
            best = q_next[range(len(q_next)), self.online(batch.obs_next).argmax(1)]
        wanted = batch.reward + batch.discount * best
        q = self.online(batch.obs)[range(len(q_next)), batch.action]
        loss = nn.functional.huber_loss(q, wanted, delta=self.agent.huber_delta)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.online.parameters(), self.clip_norm)
        self.optimizer.step()
        return float(loss.detach())

    def weights(self) -> list[torch.Tensor]:
        return [*self.online.parameters(), *self.target.parameters()]
