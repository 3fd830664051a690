"""DrM's perturbation: Xu et al. 2024 (arXiv:2310.19668), utils.perturb and agents/drm.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.validation import Count, Pair, Share
from rlplast.methods.redo import dormant
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Drm"]


@method("drm", source="Xu et al. 2024, DrM (arXiv:2310.19668); its code")
@dataclass(frozen=True)
class Drm(Method):
    """Mix weights with a fresh draw, the more the more hidden units are dormant: DrM.

    θ ← α·θ + (1 − α)·fresh, with α = 1 − `rate`·β cut to the range `keep`, and β the share of
    dormant units among all hidden units in scope (of each member of an ensemble its own) on a
    probe batch. All trainable tensors are edited, BatchNorm's running statistics are not.

    Attributes:
        rate: k, how fast α falls with β.
        keep: the smallest and the largest α.
        threshold: τ of a dormant unit: mean |activation| over its layer's mean.
        probe: samples of the probe batch.
    """

    reads = ("activations",)

    rate: NonNegativeFloat = 2.0
    keep: Pair[Share] = (0.2, 0.9)
    threshold: NonNegativeFloat = 0.025
    probe: Count = 256

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state."""
        if blocks:
            network.units_in(blocks)
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the mixture for every trainable Block in scope."""
        generator, kept = context.stream(), self._kept(context)
        edits: list[Edit] = []
        for block in context.blocks:
            if block.role == "buffer":
                continue
            now = at_least_float32(block.view)
            fresh = context.network.fresh(block, generator).to(now)
            alpha = kept[block.spec.member].to(now)
            edits.append(Assign(block, alpha * now + (1 - alpha) * fresh))
        return edits

    def _kept(self, context: Context) -> dict[int | None, Tensor]:
        """Return α of each member of an ensemble; under None that of what all share."""
        masks: dict[int | None, list[Tensor]] = {None: []}
        for group in context.units:
            mask = dormant(context.activations[group.name], self.threshold)
            for member in {None, group.weight.block.spec.member}:
                masks.setdefault(member, []).append(mask)
        shares = {member: torch.cat(parts).double().mean() for member, parts in masks.items()}
        return {m: (1 - self.rate * share).clamp(*self.keep) for m, share in shares.items()}
