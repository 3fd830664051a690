"""ReGraMa: GraMa (arXiv:2505.24061), equation 2; the scores of the authors' code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.method.once import plain
from rlplast.core.validation import Count
from rlplast.methods.recycling import start_anew, unit_state
from rlplast.metrics.units import gradient_score

__all__ = ["Regrama", "inactive", "regrama"]


def inactive(gradient: Tensor, threshold: float, max_share: float = 1.0) -> Tensor:
    """Return which units are inactive: score at most `threshold`, and among the lowest.

    Args:
        gradient: of the layer's incoming weight, a row per unit.
        threshold: τ.
        max_share: the largest share of the layer, rounded down to whole units.
    """
    score = gradient_score(gradient)
    rank = score.argsort(stable=True).argsort()
    return (score <= threshold) & (rank < int(max_share * len(score) + 1e-9))


@method("regrama", source="GraMa (arXiv:2505.24061), equation 2; score of its code")
@dataclass(frozen=True)
class Regrama(Method):
    """Reset hidden units whose weights get almost no gradient.

    A unit is inactive if the mean |gradient| of its incoming weights, divided by its layer's
    mean, is at most `threshold`. The gradient is that of the network's loss, without penalties,
    on a probe batch; inside every update it is that of the update. A new start is that of `redo`.
    A layer that the loss does not reach is left. A second firing at the same count of updates
    resets nothing (ours): units without outgoing weights have no gradient.

    Attributes:
        threshold: τ.
        max_share: largest share of a layer that starts anew, those with the lowest scores; with a
            large threshold the lowest share always does.
        probe: samples of the probe batch.
        init: initializer of the new weights: the layer's own, or uniform as Kaiming's or LeCun's.
        overlap: of a weight between two inactive units: zero or redraw.
    """

    reads = ("gradients",)
    policies = ("touched", "leave")

    threshold: NonNegativeFloat = 0.01
    max_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    probe: Count = 256
    init: Literal["own", "kaiming", "lecun"] = "own"
    overlap: Literal["zero", "redraw"] = "zero"

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return a counter per layer, and at how many updates it fired last."""
        fired = torch.zeros((), dtype=torch.int64, device=blocks[0].view.device)
        return unit_state(network, blocks) | {"fired": fired}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan a new start of the units that are inactive."""
        fresh = state["fired"].ne(context.clock.updates) | (context.clock.updates == 0)
        masks = {}
        for group in context.units:
            gradient = context.gradients.get(group.weight.block.name)
            mask = fresh.new_zeros(group.size)
            if gradient is not None:  # else the loss does not depend on it
                mask = inactive(gradient, self.threshold, self.max_share) & fresh
            masks[group.name] = mask
        edits = start_anew(context, state, masks, self.init, self.overlap)
        now = torch.full_like(state["fired"], context.clock.updates)
        return [*edits, Assign(state["fired"], now)]


regrama = plain(Regrama)
"""Give a model's inactive units a new start in place, once."""
