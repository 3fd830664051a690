"""By how much an agent's Q-values exceed the returns that follow in evaluation episodes.

Source: Chen et al. 2021 (REDQ), Section 3: the normalised bias of Q. Our own: what is done where a
time limit cuts an episode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlplast import envs

__all__ = ["ValueErrors", "Values", "returns_seen"]


@dataclass(frozen=True)
class Values:
    """What an agent says about returns: Q(s, a), (n,).

    It is of stacked observations and actions, (n, ...) each; of greedy actions for None.
    """

    q: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    gamma: float
    clip_rewards: bool  # whether it learns from the sign of rewards


def returns_seen(
    rewards: Sequence[float], gamma: float, tail: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the discounted return from each step of an episode on, (T,), and the share seen of it.

    An episode that terminated was seen whole: the shares are 1. One that was cut goes on with
    `tail`, the value of its last state. n steps before the cut γ^n of an error that all values
    share is in the tail too, and cancels; so 1 − γ^n was seen.
    """
    returns, seen = np.empty(len(rewards)), np.empty(len(rewards))
    total, unseen = (0.0, 0.0) if tail is None else (tail, 1.0)
    for i in reversed(range(len(rewards))):
        total, unseen = rewards[i] + gamma * total, gamma * unseen
        returns[i], seen[i] = total, 1 - unseen
    return returns, seen


class ValueErrors:
    """Collects what an agent says and gets in the episodes of an evaluation."""

    def __init__(self, num_envs: int, values: Values) -> None:
        self.values = values
        self._steps: list[list[tuple[float, float]]] = [[] for _ in range(num_envs)]
        self._sums = np.zeros(3)  # of errors, of returns times shares, of shares

    def add(
        self,
        stack: envs.FrameStack,
        actions: np.ndarray,
        step: envs.VectorStep,
        counted: Sequence[bool],
    ) -> None:
        """Note one step of all environments; `counted` says of each whether its episode counts."""
        rewards = np.sign(step.reward) if self.values.clip_rewards else step.reward
        q = self.values.q(stack.obs(), actions)
        for steps, value, reward in zip(self._steps, q, rewards, strict=True):
            steps.append((float(value), float(reward)))
        cut = np.flatnonzero(step.truncated)
        if len(cut):
            tails = self.values.q(stack.after(step.obs_final)[cut], None).tolist()
            for i, tail in zip(map(int, cut), tails, strict=True):
                self._end(i, tail, counted[i])
        for i in map(int, np.flatnonzero(step.terminated)):
            self._end(i, None, counted[i])

    def _end(self, i: int, tail: float | None, counts: bool) -> None:
        if counts:
            q, rewards = np.array(self._steps[i]).T
            returns, seen = returns_seen(rewards.tolist(), self.values.gamma, tail)
            self._sums += (q - returns).sum(), (seen * returns).sum(), seen.sum()
        self._steps[i] = []

    def scores(self) -> dict[str, float]:
        """Return the mean error, and the same over the size of the mean return.

        The mean error is Σ(Q − G)/Σ(share seen), which is c if all values are c too high. Empty
        where nothing was seen: γ = 1 and all episodes cut.
        """
        errors, returns, seen = map(float, self._sums)
        if seen == 0:
            return {}
        scores = {"overestimation": errors / seen}
        if returns != 0:
            scores["overestimation_normalized"] = errors / abs(returns)
        return scores
