"""ReDo: units that have fallen silent start anew.

Source: Sokar et al. 2023, Algorithm 1; order and probe of Dopamine's code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.method.context import Context
from rlplast.core.method.method import Method, State, method
from rlplast.core.method.once import plain
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Edit
from rlplast.core.network.network import Network
from rlplast.methods.recycling import counters, mean_over_samples, start_anew

__all__ = ["Redo", "dormant", "redo"]

EPS = 1e-9


def dormant(activations: Tensor, threshold: float) -> Tensor:
    """Return which units are dormant: score mean|h_i| / mean_k mean|h_k| at most `threshold`.

    In a layer that is silent as a whole all units are.

    Args:
        activations: after the nonlinearity, (samples, units, …).
        threshold: τ; 0 for units that are silent on every sample.

    Returns:
        A boolean per unit.
    """
    size = mean_over_samples(activations.abs())
    score = size / (size.mean() + EPS)
    return score.isclose(torch.zeros_like(score)) if threshold == 0 else score <= threshold


@method("redo", source="Sokar et al. 2023, Algorithm 1; Dopamine's labs/redo")
@dataclass(frozen=True)
class Redo(Method):
    """Reset dormant hidden units: draw new incoming weights, set outgoing ones to 0.

    A unit is dormant if its mean |activation| on a probe batch, divided by its layer's mean, is at
    most `threshold`. Its bias becomes 0, its entries of a norm layer in between 1 and 0. Output
    layers, residual streams and tied weights have no such units (`rlplast units`). The network
    computes the same afterwards where the units were silent and no LayerNorm mixes them with
    others. The optimizer forgets the entries and keeps its step count, and followers are left,
    unless the hook says otherwise; with followers ``same_edit`` the network's own dormant units
    start anew in the follower too.

    Attributes:
        threshold: τ: 0.1 at a replay ratio of at least 1, 0.025 below (the paper's).
        probe: samples of the probe batch.
        init: initializer of the new weights: the layer's own, or uniform as Kaiming's or LeCun's.
        overlap: of a weight between two dormant units: zero (Dopamine) or redraw.
    """

    reads: ClassVar[tuple[str, ...]] = ("activations",)
    policies: ClassVar[tuple[str, str]] = ("touched", "leave")

    threshold: NonNegativeFloat = 0.1
    probe: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    init: Literal["own", "kaiming", "lecun"] = "own"
    overlap: Literal["zero", "redraw"] = "zero"

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return a counter per layer.

        Raises:
            NothingToEdit: if there are no hidden units.
        """
        groups = network.units_in(blocks)
        return counters(groups, blocks[0].view.device)

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan a new start of the units that are dormant on the probe."""
        masks = {
            g.name: dormant(context.activations[g.name], self.threshold) for g in context.units
        }
        return start_anew(context, state, masks, self.init, self.overlap)


redo = plain(Redo)
"""Reset the dormant units of a model once, in place."""
