"""A slow twin of SAC's update: one network per critic, float64, formulas as they are printed.

Sources: Haarnoja et al. 2018 (arXiv:1812.05905), equations 5-8 and 17-18; Loshchilov & Hutter 2019
for AdamW; Lee et al. 2025 for SimBa's trunk. Nothing of the agent is used but its weights.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "AdamWTwin",
    "SACTwin",
    "Weights",
    "copied",
    "forward",
    "log_prob_twin",
    "normalised",
    "transition_twin",
]

Weights = dict[str, Tensor]
Activation = Callable[[Tensor], Tensor]


# Networks, layer by layer.


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    deviation = (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return w[f"{name}.weight"] * centred / deviation + w[f"{name}.bias"]


def relu(x: Tensor) -> Tensor:
    return x.where(x > 0, 0)


def forward(w: Weights, x: Tensor, head: str, act: Activation = relu) -> Tensor:
    """SimBa or an MLP, whichever the names of the weights belong to."""
    if "input.weight" not in w:
        for i in range(1, 1 + sum(name.startswith("fc") for name in w) // 2):
            x = act(linear(w, f"fc{i}", x))
        return linear(w, head, x)
    x = linear(w, "input", x)
    for i in range(sum(name.endswith("fc1.weight") for name in w)):
        block = f"blocks.{i}"
        inner = act(linear(w, f"{block}.fc1", layer_norm(w, f"{block}.norm", x)))
        x = x + linear(w, f"{block}.fc2", inner)
    return linear(w, head, layer_norm(w, "norm", x))


def log_prob_twin(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(u) and Σ [log N(u) - log(1 - tanh² u)], where log(1 - tanh² u) = -2 log cosh u."""
    std = log_std.exp()
    u = mean + std * noise
    normal = -((u - mean) ** 2) / (2 * std**2) - std.log() - math.log(math.sqrt(2 * math.pi))
    log_cosh = torch.logaddexp(u, -u) - math.log(2)
    return u.tanh(), (normal + 2 * log_cosh).sum(1)


# The update.


class AdamWTwin:
    """AdamW of torch's defaults, one tensor at a time."""

    def __init__(self, weights: Weights, lr: float, decay: float):
        self.weights, self.lr, self.decay, self.step = weights, lr, decay, 0
        self.m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}

    def minimise(self, loss: Tensor):
        names = list(self.weights)
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        self.step += 1
        for name, g in zip(names, gradients, strict=True):
            w = self.weights[name].detach()
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g**2
            m = self.m[name] / (1 - 0.9**self.step)
            v = self.v[name] / (1 - 0.999**self.step)
            moved = w - self.lr * self.decay * w - self.lr * m / (v.sqrt() + 1e-8)
            self.weights[name] = moved.requires_grad_()


class SACTwin:
    """Actor, critics, their targets and log α as dictionaries of float64 tensors.

    `settings` has lr, lr_critic, lr_temperature, weight_decay, tau, initial_temperature,
    learn_temperature, target_entropy, log_std (law) and its bounds, activation (a function).
    """

    def __init__(self, actor: Weights, critics: Sequence[Weights], settings: dict[str, Any]):
        self.settings = settings
        self.actor, self.critics = copied(actor), [copied(critic) for critic in critics]
        self.targets = [{n: w.detach().clone() for n, w in c.items()} for c in self.critics]
        start = torch.tensor([math.log(settings["initial_temperature"])], dtype=torch.float64)
        self.temperature = {"log_alpha": start.requires_grad_()}
        decay = settings["weight_decay"]
        self.actor_adam = AdamWTwin(self.actor, settings["lr"], decay)
        self.critic_adams = [AdamWTwin(c, settings["lr_critic"], decay) for c in self.critics]
        self.temperature_adam = AdamWTwin(self.temperature, settings["lr_temperature"], 0.0)

    def alpha(self) -> Tensor:
        return self.temperature["log_alpha"].exp().detach()

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.settings["bounds"]
        act = self.settings["activation"]
        x = forward(self.actor, obs, "log_std", act)
        if self.settings["log_std"] == "clamp":
            log_std = x.minimum(torch.tensor(high)).maximum(torch.tensor(low))
        else:
            log_std = low + (high - low) * (x.tanh() + 1) / 2
        return log_prob_twin(forward(self.actor, obs, "mean", act), log_std, noise)

    def update(
        self,
        batch: Any,
        noise: Tensor,
        normalise: tuple[np.ndarray, np.ndarray] | None,
        members: Sequence[int] | None = None,
        whole: bool = True,
    ):
        """Actor, temperature, critics with the new actor and the new α, targets.

        With `members` these critics' least value makes the target, and the actor maximises the
        mean of all. Without `whole` actor and temperature are left alone.
        """
        act = self.settings["activation"]
        obs, obs_next = (normalised(o, normalise) for o in (batch.obs, batch.obs_next))
        action, reward, discount = (
            t.double() for t in (batch.action, batch.reward, batch.discount)
        )
        noise = noise.double()

        sampled, log_prob = self.policy(obs, noise[0])
        inputs = torch.cat([obs, sampled], 1)
        values = torch.stack([forward(c, inputs, "head", act)[:, 0] for c in self.critics])
        best = values.min(0).values if members is None else values.sum(0) / len(values)
        loss_actor = (self.alpha() * log_prob - best).mean()
        entropy = -log_prob.detach().mean()
        if whole:
            self.actor_adam.minimise(loss_actor)
        if whole and self.settings["learn_temperature"]:
            gap = entropy - self.settings["target_entropy"]
            self.temperature_adam.minimise((self.temperature["log_alpha"].exp() * gap).sum())

        sampled, log_prob = self.policy(obs_next, noise[1])
        inputs = torch.cat([obs_next, sampled], 1).detach()
        chosen = range(len(self.targets)) if members is None else members
        values = [forward(self.targets[i], inputs, "head", act)[:, 0] for i in chosen]
        value = torch.stack(values).min(0).values - self.alpha() * log_prob.detach()
        wanted, loss_critic, q = reward + discount * value, 0.0, []
        for critic, adam in zip(self.critics, self.critic_adams, strict=True):
            own = forward(critic, torch.cat([obs, action], 1), "head", act)[:, 0]
            loss = ((own - wanted) ** 2).mean()
            adam.minimise(loss)
            loss_critic += float(loss.detach())
            q.append(float(own.detach().mean()))

        tau = self.settings["tau"]
        for target, critic in zip(self.targets, self.critics, strict=True):
            for name in target:
                target[name] = (1 - tau) * target[name] + tau * critic[name].detach()
        return {
            "train/loss": loss_critic,
            "train/loss_actor": float(loss_actor.detach()),
            "train/q": float(np.mean(q)),
            "train/entropy": float(entropy),
        }


def copied(weights: Weights) -> Weights:
    return {n: w.detach().double().clone().requires_grad_() for n, w in weights.items()}


def normalised(obs: Tensor, seen: tuple[np.ndarray, np.ndarray] | None) -> Tensor:
    """(obs - mean)/√(variance + 1e-8) of a mean and a variance."""
    if seen is None:
        return obs.double()
    mean, variance = (torch.from_numpy(value) for value in seen)
    return (obs.double() - mean) / (variance + 1e-8).sqrt()


# The data.


def transition_twin(
    history: Sequence[tuple[np.ndarray, np.ndarray, Any]],
    env: int,
    start: int,
    n: int,
    gamma: float,
) -> tuple[np.ndarray, float, float, np.ndarray | None]:
    """The n-step transition that begins at a step: action, Σ γ^i r_i, discount, obs k steps later.

    Only a termination makes the discount 0; a truncation cuts the window short and bootstraps
    from the episode's last observation. The observation means nothing after a termination.
    """
    total = 0.0
    for k in range(n):
        _, _, step = history[start + k]
        total += gamma**k * float(step.reward[env])
        if step.terminated[env]:
            return history[start][1][env], total, 0.0, None
        if step.truncated[env] or k == n - 1:
            return history[start][1][env], total, gamma ** (k + 1), step.obs_final[env]
    raise AssertionError("unreachable")
