"""Categorical values: a head gives probabilities of bins, and their mean is the value.

Sources: Bellemare et al. 2017 (C51, arXiv:1707.06887), Algorithm 1; Farebrother et al. 2024 (Stop
Regressing, arXiv:2403.03950), Sections 3.1 and 3.2 for two-hot targets and HL-Gauss.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section

__all__ = ["Categorical", "ValuesConfig", "check_values"]

_SIGMA = 0.75
_FINEST = 1e-6  # width of a bin, in shares of the largest value: some steps of float32
_LEAST = 1e-30  # width of a bin: far from where float32 ends


@dataclass
class ValuesConfig(Section):
    """The key ``agent.values``: values as probabilities of bins.

    Attributes:
        kind: what the head learns. hl_gauss: how much of a Gaussian around the TD target lies in
            each bin. two_hot: the TD target, shared by the two nearest bins. c51: the distribution
            of returns, moved by the Bellman equation and put back on the bins.
        bins: their number, for each action and each critic.
        low: smallest value. Targets below it count as it.
        high: largest value. Targets above it count as it.
        sigma: of hl_gauss: standard deviation of the Gaussian, in widths of a bin.
    """

    kind: Literal["hl_gauss", "two_hot", "c51"]
    bins: Annotated[int, Field(ge=2, le=10_000)] = 51
    low: float = -10.0
    high: float = 10.0
    sigma: Annotated[float, Field(ge=1e-6, le=1e6)] = _SIGMA


def check_values(config: ValuesConfig | None) -> None:
    """Check ``agent.values`` against itself.

    Raises:
        ConfigError: for an empty range, bins too narrow for float32, or a width that nothing reads.
    """
    if config is None:
        return
    if config.low >= config.high:
        raise ConfigError(
            f"agent.values.low = {config.low}: allowed is less than agent.values.high = "
            f"{config.high}"
        )
    width = (config.high - config.low) / config.bins
    least = max(_FINEST * max(abs(config.low), abs(config.high)), _LEAST)
    if width < least:
        raise ConfigError(
            f"agent.values.bins = {config.bins}: between low = {config.low} and high = "
            f"{config.high} a bin is {width:.3g} wide; allowed is {least:.3g} or more, which "
            "float32 can tell apart there: give fewer bins, or a wider range"
        )
    if config.sigma != _SIGMA and config.kind != "hl_gauss":
        raise ConfigError(
            f"agent.values.sigma = {config.sigma} with kind = {config.kind!r}: it is of hl_gauss; "
            "leave it out"
        )


class Categorical:
    """Bins of values, and targets as probabilities of them.

    The bins of ``hl_gauss`` lie side by side from low to high, and their centres, (bins,), are
    their values. Those of the others are points: the first is at low and the last at high.
    """

    def __init__(self, config: ValuesConfig, device: torch.device | str = "cpu") -> None:
        self.kind, self.bins = config.kind, config.bins
        self.low, self.high = config.low, config.high
        gauss = config.kind == "hl_gauss"
        self.width = (self.high - self.low) / (self.bins - (not gauss))
        steps = torch.arange(self.bins, dtype=torch.float64)
        centres = self.low + (steps + 0.5 * gauss) * self.width
        self.centres = centres.float().to(device)
        self._steps = steps.float().to(device)
        edges = torch.linspace(self.low, self.high, self.bins + 1, dtype=torch.float64)
        self._edges = edges.float().to(device)
        self._spread = math.sqrt(2) * config.sigma * self.width

    def mean(self, logits: Tensor) -> Tensor:
        """Return the values, (...), float32, of what a head gives, (..., bins)."""
        return (logits.float().softmax(-1) * self.centres).sum(-1)

    def probabilities(self, value: Tensor) -> Tensor:
        """Return a value's probabilities, (..., bins), of (...); values outside are clipped."""
        value = value.clamp(self.low, self.high).unsqueeze(-1)
        if self.kind == "hl_gauss":
            below = torch.erf((self._edges - value) / self._spread)
            return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])
        place = ((value - self.low) / self.width).clamp(0, self.bins - 1)
        return (1 - (place - self._steps).abs()).clamp(min=0)

    def target(
        self, reward: Tensor, discount: Tensor, logits_next: Tensor, cost: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the probabilities that a transition teaches, (batch, bins), and the share clipped.

        The target is r + discount · (V(s') − cost); ``c51`` moves each bin so. The share is that of
        targets outside [low, high]; of ``c51`` the mean probability that is.

        Args:
            reward: (batch,), the n-step discounted sum.
            discount: (batch,), γ^k, 0 after a termination.
            logits_next: (batch, bins), of the next observation.
            cost: (batch,), what the policy pays there: a SAC's α log π; None for nothing.
        """
        if self.kind == "c51":
            share, value = logits_next.float().softmax(1), self.centres.unsqueeze(0)
        else:
            value = self.mean(logits_next).unsqueeze(1)
            share = torch.ones_like(value)
        if cost is not None:
            value = value - cost.unsqueeze(1)
        moved = reward.unsqueeze(1) + discount.unsqueeze(1) * value
        outside = ((moved < self.low) | (moved > self.high)).float()
        # Sums over bins have a fixed order, so that they repeat on every device.
        target = (share.unsqueeze(2) * self.probabilities(moved)).sum(1)
        return target, (share * outside).sum(1).mean()

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return −Σ target · log softmax(logits), (...), of (..., bins) each."""
        return -(target * logits.float().log_softmax(-1)).sum(-1)
