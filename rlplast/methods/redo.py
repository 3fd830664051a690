"""ReDo: Sokar et al. 2023, Algorithm 1; order and probe of Dopamine's code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Edit, Method, Network, State, method
from rlplast.core.method.once import plain
from rlplast.core.network.units import UnitGroup
from rlplast.core.validation import Count
from rlplast.methods.recycling import mean_over_samples, replacement_cost, start_anew, unit_state

__all__ = ["Redo", "dormant", "redo"]

EPS = 1e-9


def dormant(activations: Tensor, threshold: float) -> Tensor:
    """Return which units are dormant: score mean|h_i| / mean_k mean|h_k| at most `threshold`.

    In a layer that is silent as a whole all units are.

    Args:
        activations: after the nonlinearity, (samples, units, …).
        threshold: τ; 0 for units that are silent on every sample.
    """
    return _low(mean_over_samples(activations.abs()), threshold)


def _low(size: Tensor, threshold: float) -> Tensor:
    """Return which sizes are at most a share of their mean; with 0 those of 0 up to rounding."""
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
    others. With followers ``same_edit`` the network's own dormant units start anew in the
    follower too.

    Attributes:
        threshold: τ: 0.1 at a replay ratio of at least 1, 0.025 below (the paper's).
        probe: samples of the probe batch.
        init: initializer of the new weights: the layer's own, or uniform as Kaiming's or LeCun's.
        overlap: of a weight between two dormant units: zero (Dopamine) or redraw.
        score: mean |activation|; or ``gxd``, the first-order change of the loss if the unit's
            outgoing weights become 0 (arXiv:2605.06834).
    """

    reads = ("activations",)
    policies = ("touched", "leave")

    threshold: NonNegativeFloat = 0.1
    probe: Count = 64
    init: Literal["own", "kaiming", "lecun"] = "own"
    overlap: Literal["zero", "redraw"] = "zero"
    score: Literal["activation", "gxd"] = "activation"

    def __post_init__(self) -> None:
        if self.score == "gxd":
            object.__setattr__(self, "reads", ("gradients",))

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return a counter per layer."""
        return unit_state(network, blocks)

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan a new start of the units that are dormant on the probe."""
        masks = {g.name: self._dormant(context, g) for g in context.units}
        return start_anew(context, state, masks, self.init, self.overlap)

    def _dormant(self, context: Context, group: UnitGroup) -> Tensor:
        if self.score == "activation":
            return dormant(context.activations[group.name], self.threshold)
        cost = replacement_cost(context, group)
        if cost is None:
            return torch.zeros(group.size, dtype=torch.bool, device=group.weight.block.view.device)
        return _low(cost, self.threshold)


redo = plain(Redo)
"""Reset the dormant units of a model once, in place."""
