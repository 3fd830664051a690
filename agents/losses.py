"""Losses and targets as pure functions of tensors."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "between",
    "categorical",
    "clipped_surrogate",
    "clipped_values",
    "gaussian",
    "huber",
    "q_of",
    "tanh_gaussian",
    "td_target",
]


def td_target(
    reward: Tensor, discount: Tensor, q_target_next: Tensor, q_online_next: Tensor | None = None
) -> Tensor:
    """Return r + discount · max_a Q_target(s', a), or double Q-learning's variant.

    Args:
        reward: (batch,), the n-step discounted sum.
        discount: (batch,), γ^k, 0 after a termination.
        q_target_next: (batch, actions), of the next observation.
        q_online_next: (batch, actions): if given, it picks the action (van Hasselt et al. 2016).
    """
    if q_online_next is None:
        value = q_target_next.amax(dim=1)
    else:
        best = q_online_next.argmax(dim=1, keepdim=True)
        value = q_target_next.gather(1, best).squeeze(1)
    return reward + discount * value


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Return Huber's loss element by element: quadratic below `delta`, linear above."""
    size = error.abs()
    quadratic = size.clamp(max=delta)
    return 0.5 * quadratic.square() + delta * (size - quadratic)


def q_of(q: Tensor, action: Tensor) -> Tensor:
    """Return Q(s, a), (batch, …), from values (batch, actions, …) and (batch,) actions."""
    index = action.view(-1, *(1,) * (q.ndim - 1)).expand(-1, 1, *q.shape[2:])
    return torch.gather(q, 1, index).squeeze(1)


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(u), u = mean + σ·noise, and their log-probabilities, (batch,).

    All arguments are (batch, action_dim). log π(a) = Σ [log N(u; mean, σ) − log(1 − tanh²u)] with
    the stable form log(1 − tanh²u) = 2(log 2 − u − softplus(−2u)) (Haarnoja et al. 2018,
    Appendix C).
    """
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_det = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return u.tanh(), (log_normal - log_det).sum(-1)


def between(log_std: Tensor, how: str, low: float, high: float) -> Tensor:
    """Return log σ of a head, brought between bounds.

    ``squash`` is low + ½(high − low)(tanh x + 1), as SimBa; ``clamp`` cuts, as Stable-Baselines3.
    """
    if how == "clamp":
        return log_std.clamp(low, high)
    return low + 0.5 * (high - low) * (log_std.tanh() + 1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return PPO's loss of a policy: −mean min(ρ·A, clamp(ρ, 1 − ε, 1 + ε)·A), of (batch,) each.

    Source: Schulman et al. 2017 (arXiv:1707.06347), equation 7.
    """
    bounded = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, bounded * advantage).mean()


def clipped_values(values: Tensor, before: Tensor, returns: Tensor, bound: float) -> Tensor:
    """Return PPO's clipped loss of values, 0-d: the mean of the larger squared error.

    One is that of V, the other that of V moved by at most `bound` from what it was before the
    updates; (batch,) each. As in OpenAI's baselines.
    """
    near = before + (values - before).clamp(-bound, bound)
    return torch.maximum((values - returns).square(), (near - returns).square()).mean()


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies, (batch,), of logits, (batch, actions)."""
    log_probs = logits.log_softmax(-1)
    return q_of(log_probs, action), -(log_probs.exp() * log_probs).sum(-1)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-densities, (batch,), of actions under N(mean, σ), and the entropy all share, 0-d.

    Mean and action are (batch, action_dim), log σ is (action_dim,).
    """
    scaled = (action - mean) * (-log_std).exp()
    log_prob = (-0.5 * scaled.square() - (log_std + 0.5 * math.log(2 * math.pi))).sum(-1)
    return log_prob, (log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum()
