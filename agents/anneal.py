"""n-step returns and a discount that move after each reset, as BBF has them.

The config key is ``agent.anneal``. `Anneal` is a pure function of the updates done, so there is
nothing to save.

Source: Schwarzer et al. 2023 (BBF, arXiv:2305.19452); `exponential_decay_scheduler` of its code.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlplast.core.errors import ConfigError, check_known, shortened
from rlplast.core.registry import check_range

__all__ = ["Anneal", "anneal_of"]

KEY = "agent.anneal"
_RANGES = {"every": "[1, inf)", "updates": "[1, inf)", "n_step": "[1, 1000]", "gamma": "[0, 1)"}


@dataclass(frozen=True)
class Anneal:
    """n and γ as functions of the updates done.

    Attributes:
        every: updates from the beginning of a cycle to that of the next; the first begins at 0.
        updates: from the beginning of a cycle on, in which n and γ move.
        n_step: n at the beginning of a cycle, and at its end.
        gamma: the same of γ.
    """

    every: int
    updates: int
    n_step: tuple[int, int]
    gamma: tuple[float, float]

    def at(self, updates: int) -> tuple[int, float]:
        """Return n and γ of the update after so many: n and 1 − γ move exponentially."""
        left = max(0.0, 1 - updates % self.every / self.updates)
        n = round(_between(*self.n_step, left))
        return n, 1 - _between(1 - self.gamma[0], 1 - self.gamma[1], left)


def _between(start: float, end: float, left: float) -> float:
    """Return end·(start / end)^left."""
    if left == 0 or start == end:
        return end
    return math.exp(left * (math.log(start) - math.log(end)) + math.log(end))


def anneal_of(said: Any, n_step: int, gamma: float) -> Anneal | None:
    """Return what ``agent.anneal`` asks for; None if nothing moves.

    Args:
        said: null, or a mapping with `every`, `updates`, and `n_step` or `gamma` or both.
        n_step: n at the end of a cycle, ``agent.n_step``.
        gamma: γ at the end of a cycle, ``agent.gamma``.

    Raises:
        ConfigError: naming the value that is not allowed.
    """
    if said is None:
        return None
    example = "{every: 40000, updates: 10000, n_step: 10, gamma: 0.97}"
    if not isinstance(said, Mapping):
        raise ConfigError(f"{KEY} = {shortened(said)}: allowed is null, or a mapping as {example}")
    check_known(KEY, said, list(_RANGES))
    if not {"every", "updates"} <= set(said) or not {"n_step", "gamma"} & set(said):
        raise ConfigError(
            f"{KEY} = {shortened(said)}: needed are every, updates, and n_step or gamma, as in "
            f"{example}"
        )
    types = {"every": 1, "updates": 1, "n_step": 1, "gamma": 1.0}
    found = {
        key: check_range(f"{KEY}.{key}", value, types[key], _RANGES[key])
        for key, value in said.items()
    }
    if "gamma" in said and gamma == 1:
        raise ConfigError(f"{KEY}.gamma with agent.gamma = 1: allowed is agent.gamma below 1")
    if found["updates"] > found["every"]:
        raise ConfigError(
            f"{KEY}.updates = {found['updates']}: allowed is at most every = {found['every']}, or "
            "a cycle would never come to its end"
        )
    steps = (found.get("n_step", n_step), n_step)
    return Anneal(found["every"], found["updates"], steps, (found.get("gamma", gamma), gamma))
