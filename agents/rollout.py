"""What a policy did in its environments, and the data that updates learn from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlplast.core.batches import batch_slices
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError

__all__ = ["Rollout", "Transitions", "advantages"]

Floats = npt.NDArray[np.floating]


class Transitions(NamedTuple):
    """Transitions of a rollout."""

    obs: Tensor  # (batch, *obs_shape), as the networks saw them
    action: Tensor  # (batch,) integers, or (batch, action_dim), not clipped
    log_prob: Tensor  # (batch,), log-probability of the action when it was chosen
    advantage: Tensor  # (batch,)
    returns: Tensor  # (batch,), what the critic learns: advantage plus value
    value: Tensor  # (batch,), the critic's as the rollout was full


def advantages(
    reward: Floats,
    value: Floats,
    last: Floats,
    ended: npt.NDArray[np.bool_],
    decay: float,
    gamma: float,
) -> Floats:
    """Return Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ·V(s_{t+1}) − V(s_t), up to an episode's end.

    Source: Schulman et al. 2016 (arXiv:1506.02438), equation 16.

    Args:
        reward: r, (steps, num_envs); of a truncated step with γ·V of its last observation.
        value: V(s_t), (steps, num_envs).
        last: V of the observations after the last step, (num_envs,).
        ended: (steps, num_envs), whether a step ended its episode; then V(s_{t+1}) is 0.
        decay: λ.
        gamma: γ.
    """
    goes_on = (~ended).astype(np.float32) * np.float32(gamma)
    delta = reward + goes_on * np.concatenate((value[1:], last[None])) - value
    falling, sums = goes_on * np.float32(decay), np.zeros_like(last)
    for t in reversed(range(len(delta))):
        delta[t] += falling[t] * sums
        sums = delta[t]
    return delta


class Rollout:
    """Steps of all environments, of which the last whole rollout's transitions stay.

    Attributes:
        obs: (steps, num_envs, *obs_shape); of the steps before `position`.
        cuts: where episodes were truncated: the step, environments (k,), and their last
            observations (k, *obs_shape). Values of these are not stored: a critic may be edited
            before the rollout is full.
        data: the transitions of the last whole rollout, step by step: static tensors.
        position: steps so far.
        filled: whether there are data.
    """

    def __init__(
        self,
        steps: int,
        num_envs: int,
        obs_shape: Sequence[int],
        obs_dtype: str,
        action_dim: int | None,
        device: torch.device,
    ) -> None:
        shape = steps, num_envs
        self.steps, self.position, self.filled = steps, 0, False
        self.obs = np.zeros((*shape, *obs_shape), obs_dtype)
        discrete = action_dim is None
        action = (shape, np.int64) if discrete else ((*shape, action_dim), np.float32)
        self.action = np.zeros(*action)
        self.log_prob, self.reward = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.ended = np.zeros(shape, np.bool_)
        self.cuts: list[tuple[int, npt.NDArray[np.int64], np.ndarray]] = []
        self._device = device
        self.data = self.empty(steps * num_envs)

    def empty(self, size: int) -> Transitions:
        """Return room for so many transitions."""
        arrays = self.obs, self.action, self.log_prob, *[self.reward] * 3
        like = (torch.from_numpy(array[:0, 0]) for array in arrays)
        return Transitions(*(t.new_zeros((size, *t.shape[1:]), device=self._device) for t in like))

    @property
    def full(self) -> bool:
        """Whether all steps are done; `finish` comes next."""
        return self.position == self.steps

    def restart(self) -> None:
        """Forget the steps so far; `data` stay."""
        self.position, self.cuts = 0, []

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        log_prob: np.ndarray,
        reward: np.ndarray,
        ended: np.ndarray,
    ) -> None:
        """Store a step of all environments, each (num_envs, ...)."""
        t = self.position
        self.obs[t], self.action[t], self.log_prob[t] = obs, action, log_prob
        self.reward[t], self.ended[t] = reward, ended
        self.position += 1

    def cut(self, envs: npt.NDArray[np.int64], last: np.ndarray) -> None:
        """End episodes of environments, (k,), with the newest step, as truncated.

        Their last observations, (k, *obs_shape), are as the networks see them.
        """
        if self.position and len(envs):
            self.ended[self.position - 1, envs] = True
            self.cuts.append((self.position - 1, envs, last))

    def finish(self, value: Floats, last: Floats, decay: float, gamma: float) -> None:
        """Make data of a full rollout, and begin the next; arguments as of `advantages`."""
        advantage = advantages(self.reward, value, last, self.ended, decay, gamma)
        arrays = self.obs, self.action, self.log_prob, advantage, advantage + value, value
        for data, array in zip(self.data, arrays, strict=True):
            data.copy_(torch.from_numpy(array).flatten(0, 1))
        self.restart()
        self.filled = True

    def of(self, rows: np.ndarray) -> Transitions:
        """Return the data of some rows; a copy."""
        chosen = on_device(rows, self._device)
        return Transitions(*(data[chosen] for data in self.data))

    def batches(
        self, count: int | None, size: int, rng: np.random.Generator
    ) -> Iterator[Transitions]:
        """Yield batches of the data: `count` draws, or every transition once, in any order.

        Raises:
            ConfigError: if there are no data yet.
        """
        if not self.filled:
            raise ConfigError(
                f"no rollout is whole yet ({self.position} of {self.steps} steps), so there is "
                "nothing to sample: let the hook fire later"
            )
        whole = len(self.data.obs)
        if count is None:
            order = rng.permutation(whole)
            yield from (self.of(order[part]) for part in batch_slices(whole, size))
        else:
            yield from (self.of(rng.integers(whole, size=size)) for _ in range(count))

    def state_dict(self) -> dict[str, Any]:
        """Return the steps so far and the data."""
        steps = {name: getattr(self, name) for name in _STEPS}
        return steps | {
            "position": self.position,
            "cuts": self.cuts,
            "filled": self.filled,
            "data": self.data._asdict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, into the same arrays and tensors."""
        for name in _STEPS:
            getattr(self, name)[:] = state[name]
        for name, data in self.data._asdict().items():
            data.copy_(state["data"][name])
        self.position, self.filled = int(state["position"]), bool(state["filled"])
        self.cuts = [(int(t), envs.copy(), last.copy()) for t, envs, last in state["cuts"]]


_STEPS = ("obs", "action", "log_prob", "reward", "ended")
