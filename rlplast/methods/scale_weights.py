"""Scale weights: SWR paper, Theorem 1 and Figure 1."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Block, Context, Edit, Method, Network, Scale, State, method
from rlplast.methods.rescaling import chains_of, check_followed, rescaled

__all__ = ["ScaleWeights"]


@method("scale_weights", source="SWR Theorem 1, Figure 1")
@dataclass(frozen=True)
class ScaleWeights(Method):
    """Multiply every layer's weight by one factor, once.

    W_l ← c·W_l, and, if `proportional`, b_l ← C·b_l in forward order, where C is the product of
    the factors so far; it starts anew at a norm layer. Outputs then keep their proportion and a
    classifier its classes; without it they change.

    Attributes:
        factor: c.
        proportional: whether biases and norm layers' shifts follow. This needs a network with a
            forward order: no branches, no tied tensors.
    """

    factor: PositiveFloat = 0.5
    proportional: bool = True

    def check_layers(
        self, network: Network, blocks: Sequence[Block], left: Sequence[Block]
    ) -> None:
        """Refuse to leave out a bias that has to follow the layers scaled, if `proportional`."""
        if self.proportional:
            check_followed(network, blocks, left, self.name)

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state; refuse a scope without a weight, or a network without a forward order."""
        if self.proportional and blocks:
            chains_of(network, blocks, self.name, "set proportional: false")
        elif blocks and not _weights(blocks):
            raise NothingToEdit(
                f"scale_weights finds no linear, conv or norm layer in network {network.name!r}"
            )
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan one factor per tensor."""
        first = context.blocks[0].view
        dtype = torch.promote_types(first.dtype, torch.float32)
        factor = torch.full((), self.factor, dtype=dtype, device=first.device)
        if not self.proportional:
            return [Scale(block, factor) for block in _weights(context.blocks)]
        order = chains_of(context.network, context.blocks, self.name, None)
        rows = itertools.repeat((factor, None))
        one = torch.ones_like(factor)
        return [edit for layers in order.chains for edit in rescaled(layers, rows, one)]


def _weights(blocks: Sequence[Block]) -> list[Block]:
    weights = [b for b in blocks if b.role in ("weight", "scale") and not b.aliases]
    return [b for b in weights if b.kind in ("linear", "conv", "norm")]
