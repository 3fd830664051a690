"""DASH, direction-aware shrinking: Shin et al. 2024, Algorithm 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.method.once import plain
from rlplast.core.validation import Count, Share, Updates
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Dash", "dash", "shrink_factors"]


def shrink_factors(weight: Tensor, direction: Tensor, coef: float) -> Tensor:
    """Return each neuron's factor, max(cos(direction, weight), coef), shaped to broadcast.

    A neuron is a row of a linear weight, a kernel of a conv weight, or a whole bias. Lengths are
    at least 1e-8, as in torch's cosine similarity: rounding noise has no direction.

    Args:
        weight: (d_out, d_in), (c_out, c_in, …) or (d_out,).
        direction: of the same shape: where the loss falls.
        coef: the least factor.
    """
    weight, direction = at_least_float32(weight), at_least_float32(direction)
    dims = tuple(range(min(weight.ndim - 1, 2), weight.ndim))
    product = (weight * direction).sum(dims, keepdim=True)
    lengths = [torch.linalg.vector_norm(v, dim=dims, keepdim=True) for v in (weight, direction)]
    return (product / (lengths[0].clamp(min=1e-8) * lengths[1].clamp(min=1e-8))).clamp(coef, 1)


@method("dash", source="Shin et al. 2024, Algorithm 1")
@dataclass(frozen=True)
class Dash(Method):
    """Shrink each neuron by how far it points away from the negative gradient: DASH.

    Over batches of all data, without a step, G ← (1 − alpha)·G − alpha·∂L/∂W; then each neuron is
    multiplied by max(cos(G, W), coef). A neuron is a row of a linear layer, a kernel of a conv
    over its pixels, or a layer's bias as a whole. L has no penalties. With followers ``same_edit``
    they are measured against the network's own G.

    Attributes:
        alpha: weight of the newest batch in G.
        coef: λ, the least factor.
        batches: how many batches G is made of; None for one pass over the data (a whole replay; as
            many rows as a phase of a GPT trains on).
        batch: samples of a batch.
        mode: of the network meanwhile: train (official code, and FIRE's in a warm start), or eval
            (FIRE's else). Running statistics do not move.
    """

    reads = ("batches", "gradients")

    alpha: Share = 0.3
    coef: Share = 0.3
    batches: Updates | None = None
    batch: Count = 256
    mode: Literal["train", "eval"] = "train"

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state; refuse a scope without neurons."""
        if not any(_has_neurons(block) for block in blocks):
            raise NothingToEdit(f"dash finds no linear or conv layer in network {network.name!r}")
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the shrinking of every neuron in scope."""
        blocks = [block for block in context.blocks if _has_neurons(block)]
        ema = {b.name: torch.zeros_like(at_least_float32(b.view)) for b in blocks}
        for batch in context.batches(self.batches, self.batch):
            gradients = context.gradients_on(batch, train=self.mode == "train")
            for name, mean in ema.items():
                mean.mul_(1 - self.alpha)
                if name in gradients:  # else the loss does not depend on it
                    mean.sub_(gradients[name].to(mean), alpha=self.alpha)
        factors = [shrink_factors(b.view, ema[b.name], self.coef) for b in blocks]
        rows = zip(blocks, factors, strict=True)
        return [Assign(b, at_least_float32(b.view) * factor) for b, factor in rows]


def _has_neurons(block: Block) -> bool:
    matrix = block.kind in ("linear", "conv") and block.role in ("weight", "bias")
    return matrix and not block.aliases


dash = plain(Dash)
"""Shrink the weights of a model's neurons once, in place."""
