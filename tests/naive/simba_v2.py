"""A slow twin of SimbaV2's networks and update, as its code prints them.

Sources: Lee et al. 2025 (arXiv:2502.15280), Section 4; `simbaV2_layer.py`, `simbaV2_update.py` and
`normalization.py` of its code. Nothing of the agent is used but its weights.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.naive.sac import AdamWTwin, Weights, copied, log_prob_twin, normalised

__all__ = ["SimbaV2Twin", "forward", "reward_divisor_twin"]


# Rewards.


def reward_divisor_twin(
    steps: Sequence[tuple[Sequence[float], Sequence[bool]]], gamma: float, bound: float
) -> float:
    """What rewards are divided by after some steps: of each, rewards and which episodes ended."""
    returns, seen = [0.0] * len(steps[0][0]), []
    for rewards, ended in steps:
        for i, (reward, done) in enumerate(zip(rewards, ended, strict=True)):
            returns[i] = gamma * (0.0 if done else returns[i]) + float(reward)
        seen += returns
    mean = sum(seen) / len(seen)
    variance = sum((g - mean) ** 2 for g in seen) / len(seen)
    return max(math.sqrt(variance + 1e-8), max(abs(g) for g in seen) / bound)


# The update.


def l2(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-8)


def forward(w: Weights, x: Tensor, head: str) -> Tensor:
    x = l2(torch.cat([x, torch.full((len(x), 1), 3.0, dtype=x.dtype)], 1))
    x = l2(w["scaler.weight"] * (x @ w["input.weight"].T))
    blocks = sum(name.endswith("alpha.weight") for name in w)
    for i in range(blocks):
        before, b = x, f"blocks.{i}"
        x = w[f"{b}.scaler.weight"] * (x @ w[f"{b}.fc1.weight"].T)
        x = l2((x.clamp(min=0) + 1e-8) @ w[f"{b}.fc2.weight"].T)
        alpha = w[f"{b}.alpha.weight"] / (blocks + 1) * math.sqrt(x.shape[1])
        x = l2(before + alpha * (x - before))
    x = w[f"{head}.scaler.weight"] * (x @ w[f"{head}.fc1.weight"].T)
    return x @ w[f"{head}.fc2.weight"].T + w[f"{head}.fc2.bias"]


class SimbaV2Twin:
    """Actor, critics, targets and log α; Adam, and rows of length 1 after each of its steps.

    `settings` has lr, tau, initial_temperature, target_entropy, bins and bound (of the values).
    """

    def __init__(self, actor: Weights, critics: Sequence[Weights], settings: dict[str, Any]):
        self.settings = settings
        self.actor, self.critics = copied(actor), [copied(critic) for critic in critics]
        self.targets = [{n: w.detach().clone() for n, w in c.items()} for c in self.critics]
        start = torch.tensor([math.log(settings["initial_temperature"])], dtype=torch.float64)
        self.temperature = {"log_alpha": start.requires_grad_()}
        parts = [self.actor, *self.critics, self.temperature]
        self.adams = [AdamWTwin(part, settings["lr"], 0.0) for part in parts]
        bound, bins = settings["bound"], settings["bins"]
        self.atoms = torch.linspace(-bound, bound, bins, dtype=torch.float64)

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, x = forward(self.actor, obs, "mean"), forward(self.actor, obs, "log_std")
        return log_prob_twin(mean, -10 + 12 * 0.5 * (1 + x.tanh()), noise)

    def q(self, critic: Weights, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = forward(critic, torch.cat([obs, action], 1), "head").log_softmax(1)
        return (log_prob.exp() * self.atoms).sum(1), log_prob

    def projected(self, target: Tensor, moved: Tensor) -> Tensor:
        """categorical_td_loss: each moved atom to the one-hot rows of its floor and ceiling."""
        bound, bins = self.settings["bound"], self.settings["bins"]
        b = (moved.clamp(-bound, bound) + bound) / (2 * bound / (bins - 1))
        low, high = b.floor(), b.ceil()
        found = torch.zeros_like(target)
        for row in range(len(target)):
            for j in range(bins):
                whole = float(low[row, j] == high[row, j])
                share = target[row, j]
                found[row, int(low[row, j])] += share * (high[row, j] + whole - b[row, j])
                found[row, int(high[row, j])] += share * (b[row, j] - low[row, j])
        return found

    def step(self, part: int, loss: Tensor):
        self.adams[part].minimise(loss)
        weights = self.adams[part].weights
        for name, w in weights.items():
            if w.ndim == 2:
                weights[name] = l2(w.detach()).requires_grad_()

    def update(self, batch: Any, noise: Tensor, statistics: Any, divisor: float):
        obs, obs_next = (normalised(o, statistics) for o in (batch.obs, batch.obs_next))
        noise, alpha = noise.double(), self.temperature["log_alpha"].exp().detach()

        action, log_prob = self.policy(obs, noise[0])
        values = torch.stack([self.q(c, obs, action)[0] for c in self.critics]).min(0).values
        self.step(0, (log_prob * alpha - values).mean())
        entropy = -log_prob.detach().mean()
        gap = entropy - self.settings["target_entropy"]
        self.step(-1, (self.temperature["log_alpha"].exp() * gap).sum())
        alpha = self.temperature["log_alpha"].exp().detach()

        with torch.no_grad():
            action, log_prob = self.policy(obs_next, noise[1])
            found = [self.q(target, obs_next, action) for target in self.targets]
            least = torch.stack([q for q, _ in found]).argmin(0)
            next_log = torch.stack([found[i][1][row] for row, i in enumerate(least.tolist())])
            reward, discount = batch.reward.double() / divisor, batch.discount.double()
            cost = (alpha * log_prob).unsqueeze(1)
            moved = reward.unsqueeze(1) + discount.unsqueeze(1) * (self.atoms - cost)
            wanted = self.projected(next_log.exp(), moved)
        for i, critic in enumerate(self.critics):
            _, log = self.q(critic, obs, batch.action.double())
            self.step(1 + i, -(wanted * log).sum(1).mean())
        tau = self.settings["tau"]
        for target, critic in zip(self.targets, self.critics, strict=True):
            for name in target:
                target[name] = tau * critic[name].detach() + (1 - tau) * target[name]
