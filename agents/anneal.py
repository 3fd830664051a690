"""n-step returns and a discount that move after each reset, as BBF has them.

Source: Schwarzer et al. 2023 (BBF, arXiv:2305.19452); `exponential_decay_scheduler` of its code.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt

from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section

__all__ = ["AnnealConfig", "check_anneal"]


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

    def at(self, updates: int, n_step: int, gamma: float) -> tuple[int, float]:
        """Return n and γ of the update after so many: n and 1 − γ move exponentially.

        `n_step` and `gamma` are those at the end of a cycle.
        """
        left = max(0.0, 1 - updates % self.every / self.updates)
        first_n = n_step if self.n_step is None else self.n_step
        first_gamma = gamma if self.gamma is None else self.gamma
        n = round(_between(first_n, n_step, left))
        return n, 1 - _between(1 - first_gamma, 1 - gamma, left)


def _between(start: float, end: float, left: float) -> float:
    """Return end·(start / end)^left."""
    if left == 0 or start == end:
        return end
    return math.exp(left * (math.log(start) - math.log(end)) + math.log(end))


def check_anneal(config: AnnealConfig | None, gamma: float) -> None:
    """Check ``agent.anneal`` against itself and ``agent.gamma``.

    Raises:
        ConfigError: if nothing moves, γ moves to 1, or they move for longer than a cycle.
    """
    if config is None:
        return
    if config.n_step is None and config.gamma is None:
        raise ConfigError(
            "agent.anneal has neither n_step nor gamma: needed is one of them, as in {every: "
            "40000, updates: 10000, n_step: 10, gamma: 0.97}"
        )
    if config.gamma is not None and gamma == 1:
        raise ConfigError("agent.anneal.gamma with agent.gamma = 1: allowed is agent.gamma below 1")
    if config.updates > config.every:
        raise ConfigError(
            f"agent.anneal.updates = {config.updates}: allowed is at most every = {config.every}, "
            "or a cycle would never come to its end"
        )
