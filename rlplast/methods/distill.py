"""Distill, iterated relearning (ITER): Igl et al. 2021 (arXiv:2006.05826)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.registry import build
from rlplast.core.validation import Count, Updates
from rlplast.methods.features import OutputTerm, members
from rlplast.methods.past import past_self, remember, room

__all__ = ["Distill"]

_NEVER = -1  # for the updates at the last firing


@method("distill", source="Igl et al. 2021, ITER (arXiv:2006.05826)", key="hooks")
@dataclass(frozen=True)
class Distill(OutputTerm):
    """Reset a network, and pull its outputs to those of its past self for some updates: ITER.

    A firing remembers the network, then resets it. In the `updates` updates after it the loss has
    the term coef · w · mean (f(x) − f_past(x))² over a batch x of its own, where w falls from 1 to
    0 in a straight line. A firing during a distillation starts a new one.

    Attributes:
        reset: the method that resets, with the defaults of its parameters.
        coef: strength of the term right after a firing.
        updates: how long the term lasts.
        batch: samples of the batch.
    """

    reset: Literal["full_reset", "head_reset", "shrink_perturb", "fire"] = "full_reset"
    coef: NonNegativeFloat = 1.0
    updates: Updates = 10_000
    batch: Count = 256

    @cached_property
    def _reset(self) -> Method:
        return build("methods", self.reset, {})

    @property
    def uses_initial(self) -> bool:
        """Whether the reset reads θ0."""
        return self._reset.uses_initial

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return room for the past self, and when the last firing was, on the CPU."""
        if blocks and not any(self.covers(b) for b in network.trainable()):
            raise NothingToEdit(f"distill finds no outputs of network {network.name!r}")
        self._reset.setup(network, blocks)
        # The host reads `fired` at every update, and may not wait for a device.
        return room(network) | {"fired": torch.full((), _NEVER, dtype=torch.int64)}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan to remember the network, and the reset."""
        edits = remember(self.name, context.network, state)
        edits.append(Assign(state["fired"], torch.tensor(context.clock.updates)))
        return edits + self._reset.plan(context, {})

    def term(self, context: Context, state: State) -> Tensor:
        """Return the term of this update, summed over the members of an ensemble; 0 when over."""
        done, fired = context.clock.updates, int(state["fired"])
        if fired == _NEVER or done - fired >= self.updates:
            return context.blocks[0].view.new_zeros(())
        [batch] = context.batches(1, self.batch)
        with torch.no_grad():
            before = context.outputs(batch, past_self(context.network, state))
        error = (context.outputs(batch) - before).square().mean()
        strength = self.coef * (1 - (done - fired) / self.updates)
        return strength * members(context.blocks) * error
