"""n-step returns and a discount that move after each reset, as BBF has them.

Source: Schwarzer et al. 2023 (BBF, arXiv:2305.19452); `exponential_decay_scheduler` of its code.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt

from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section

__all__ = ["Anneal", "AnnealConfig", "anneal_of"]

KEY = "agent.anneal"


@dataclass
class AnnealConfig(Section):
    """The key ``agent.anneal``.

    Attributes:
        every: updates from the beginning of a cycle to that of the next.
        updates: how many, from the beginning of a cycle, in which n and γ move.
        n_step: n at the beginning of a cycle; null: it stays.
        gamma: γ at the beginning of a cycle; null: it stays.
    """

    every: PositiveInt
    updates: PositiveInt
    n_step: Annotated[int, Field(ge=1, le=1000)] | None = None
    gamma: Annotated[float, Field(ge=0, lt=1)] | None = None


@dataclass(frozen=True)
class Anneal:
    """n and γ as functions of the updates done.

    Attributes:
        every: updates from the beginning of a cycle to that of the next; the first begins at 0.
        updates: how many, from the beginning of a cycle, in which n and γ move.
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


def anneal_of(config: AnnealConfig | None, n_step: int, gamma: float) -> Anneal | None:
    """Return what ``agent.anneal`` asks for; None if nothing moves.

    Args:
        config: the key's value.
        n_step: n at the end of a cycle, ``agent.n_step``.
        gamma: γ at the end of a cycle, ``agent.gamma``.
    """
    if config is None:
        return None
    if config.n_step is None and config.gamma is None:
        raise ConfigError(
            f"{KEY} has neither n_step nor gamma: needed is one of them, as in {{every: 40000, "
            "updates: 10000, n_step: 10, gamma: 0.97}"
        )
    if config.gamma is not None and gamma == 1:
        raise ConfigError(f"{KEY}.gamma with agent.gamma = 1: allowed is agent.gamma below 1")
    if config.updates > config.every:
        raise ConfigError(
            f"{KEY}.updates = {config.updates}: allowed is at most every = {config.every}, or a "
            "cycle would never come to its end"
        )
    first_n = n_step if config.n_step is None else config.n_step
    first_gamma = gamma if config.gamma is None else config.gamma
    return Anneal(config.every, config.updates, (first_n, n_step), (first_gamma, gamma))
