"""SNR, self-normalized resets: Farias & Jozefiak 2024, Algorithm 1; details of their `snr.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.units import UnitGroup
from rlplast.core.validation import Count, Updates
from rlplast.methods.recycling import hashed_rows, largest_size, recycle, unit_state

__all__ = ["Snr"]

RECTIFIERS = ("relu", "relu6")  # silent means exactly 0


@method("snr", source="Farias & Jozefiak 2024, Algorithm 1; SelfNormalizedResets, snr.py")
@dataclass(frozen=True)
class Snr(Method):
    """Reset units that are silent for much longer than usual for them: self-normalized resets.

    A unit's age is the number of samples since it last fired. It is reset at an age of τ: incoming
    weights drawn anew, bias and outgoing weights 0, norm entries 1 and 0, and the optimizer
    forgets these entries (``step``, which a tensor shares, is kept). Every `refresh` updates τ
    becomes the `percentile` of the unit's own gaps between firings, or grows by `expansion` if that
    would not lower it. List it with ``every: 1 updates``: with other schedules a firing counts as
    one update.

    A layer's histogram has units · (tau_max + 2) 32-bit numbers: 41 MB for 512 units.

    Attributes:
        percentile: 1 − η, where η is how improbable a silence must be.
        tau_init: first threshold, in samples; None for `tau_max`.
        tau_max: largest threshold, in samples.
        tau_min: least threshold, in samples; None for the batch size.
        refresh: updates between two refreshments of the thresholds (the paper's code counts 16
            tasks; there are none here).
        expansion: factor by which a threshold grows.
        empty: a unit without gaps: keep its threshold, or, as the official code, take the least.
        eps: a unit fires where |h| is larger; None for h > 0, which only ReLUs have.
    """

    reads = ("activations", "moments")
    policies = ("keep", "leave")

    percentile: Annotated[float, Field(gt=0, le=1)] = 0.98
    tau_init: Count | None = None
    tau_max: Count = 20_000
    tau_min: Count | None = None
    refresh: Updates = 1000
    expansion: Count = 2
    empty: Literal["keep", "official"] = "keep"
    eps: NonNegativeFloat | None = None

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return ages, thresholds and histograms of each layer."""
        state = unit_state(network, blocks, age=torch.int64, drawn=torch.int64)
        device = blocks[0].view.device
        for group in network.units_in(blocks):
            if self.eps is None and group.nonlinearity not in RECTIFIERS:
                raise ConfigError(
                    f"snr: {network.name}.{group.name} uses {group.nonlinearity}, which is never "
                    "silent: give snr.eps, such as 0.01, below which a unit counts as silent"
                )
            size, start = group.size, self.tau_init or self.tau_max
            state[f"tau/{group.name}"] = torch.full((size,), start, device=device)
            # One bin more than there are gaps: what falls outside goes there.
            bins = size * (self.tau_max + 2)
            state[f"gaps/{group.name}"] = torch.zeros(bins, dtype=torch.int32, device=device)
        return state

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the bookkeeping of this update, and a new start of the units silent too long."""
        edits: list[Edit] = []
        masks: dict[str, Tensor] = {}
        for group in context.units:
            masks[group.name], books = self._observe(context, state, group)
            edits += books
        draw = hashed_rows(context, state, lambda g: math.sqrt(1 / g.weight.block.spec.fan_in))
        return edits + recycle(context, state, masks, draw, moments=True)

    def captured_key(self, clock: Clock) -> bool:
        """Whether the thresholds are renewed."""
        return clock.updates % self.refresh == 0

    def _observe(
        self, context: Context, state: State, group: UnitGroup
    ) -> tuple[Tensor, list[Edit]]:
        """Return which units of a layer are reset, and the edits of its books."""
        h = context.activations[group.name]
        age, tau, gaps = (state[f"{name}/{group.name}"] for name in ("age", "tau", "gaps"))
        fired = largest_size(h) > (self.eps or 0.0)  # of a ReLU: whether it is positive
        age_now = torch.where(fired, age, age + h.shape[0])
        reset = ~fired & (age_now >= tau)
        ended = fired | reset
        bins = age_now.where(ended & (age_now <= self.tau_max), self.tau_max + 1)
        rows = bins + torch.arange(group.size, device=h.device) * (self.tau_max + 2)
        counted = gaps[rows] + ended
        edits: list[Edit] = [Assign(age, age_now.where(~ended, 0))]
        if not self.captured_key(context.clock):
            edits.append(Assign(gaps, counted.to(gaps.dtype), rows=rows))
        else:
            whole = gaps.index_copy(0, rows, counted.to(gaps.dtype))
            least = min(self.tau_min or h.shape[0], self.tau_max)
            edits += [
                Assign(tau, self._threshold(whole, tau, least)),
                Assign(gaps, torch.zeros_like(gaps)),
            ]
        return reset, edits

    def _threshold(self, gaps: Tensor, tau: Tensor, least: int) -> Tensor:
        """Return new thresholds from the gaps counted since the last ones."""
        table = gaps.view(len(tau), -1)[:, 1 : self.tau_max + 1]  # a gap of 0 is none
        reached = table.cumsum(1, dtype=torch.int64)
        total = reached[:, -1:]
        share = reached.double() / total.clamp(min=1)
        gap = 1 + (share >= self.percentile).to(torch.uint8).argmax(1)
        # Without any gap `gap` is 1, as the first index of a comparison with nan.
        new = torch.where(gap < tau, gap, tau * self.expansion).clamp(least, self.tau_max)
        return new if self.empty == "official" else torch.where(total.squeeze(1) > 0, new, tau)
