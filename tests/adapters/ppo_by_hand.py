"""PPO written out: the minibatches of a run of Stable-Baselines3, learned from by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.rng import derive_seed, torch_stream


class Watched:
    """Notes what a PPO learns from: the observations of each rollout, and its minibatches."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.rollouts: list[tuple[Tensor, list[Any]]] = []
        self._get = model.rollout_buffer.get
        model.rollout_buffer.get = self.get

    def get(self, batch_size: int) -> Iterator[Any]:
        buffer = self.model.rollout_buffer
        if not buffer.generator_ready:  # the first epoch of a rollout
            flat = buffer.observations.reshape(-1, *buffer.observations.shape[2:])
            self.rollouts.append((torch.as_tensor(flat.copy()), []))
        for batch in self._get(batch_size):
            copied = type(batch)(*(t.clone() for t in batch))
            self.rollouts[-1][1].append(copied)
            yield batch


def loss_of(policy: Any, batch: Any, model: Any) -> Tensor:
    """Schulman et al. 2017, eq. 9: clipped objective, value, entropy."""
    actions = batch.actions.long().flatten()
    values, log_prob, entropy = policy.evaluate_actions(batch.observations, actions)
    advantages = batch.advantages
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(log_prob - batch.old_log_prob)
    clip = model.clip_range(1.0)
    clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
    objective = -torch.min(advantages * ratio, advantages * clipped).mean()
    value = F.mse_loss(batch.returns, values.flatten())
    return objective - model.ent_coef * entropy.mean() + model.vf_coef * value


def learn_by_hand(
    watched: Watched,
    policy: Any,
    optimizer: torch.optim.Optimizer,
    term: Callable[[nn.Module], Tensor] | None = None,
    before_rollout: Callable[[int, Tensor | None], None] = lambda number, observations: None,
    after_update: Callable[[int], None] = lambda update: None,
) -> None:
    """Make the updates of a run, in its order, on a copy of the policy as it began.

    The gradient of `term` is not clipped. `before_rollout` gets the number of each rollout from 1
    on, and the observations of the one before; `after_update` the number of each update.
    """
    model, update, last = watched.model, 0, None
    for number, (observations, batches) in enumerate(watched.rollouts, 1):
        before_rollout(number, last)
        last = observations
        for batch in batches:
            optimizer.zero_grad()
            loss_of(policy, batch, model).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            parameters = list(policy.parameters())
            if term is not None:
                found = torch.autograd.grad(term(policy), parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, found, strict=True):
                    if gradient is not None:
                        parameter.grad = parameter.grad + gradient
            optimizer.step()
            update += 1
            after_update(update)


def probed(watched: Watched, rollout: int, method: str, update: int) -> Tensor:
    """The batch that a term of the actor reads at an update, for a callback of seed 5."""
    observations = watched.rollouts[rollout - 1][0]
    stream = derive_seed(0, "penalty", method, "actor", update)
    generator = torch_stream(5, "probe", derive_seed(stream, 0))
    return observations[torch.randint(len(observations), (8,), generator=generator)]


def close(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in pairs)
