"""Weight clipping: Elsayed et al. 2024 (arXiv:2407.01704), Algorithm 1, `weight_clipping.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import PositiveFloat

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.order import check_matrices, matrices

__all__ = ["WeightClip"]


@method("weight_clip", source="Elsayed et al. 2024, Algorithm 1")
@dataclass(frozen=True)
class WeightClip(Method):
    """Clip weights and biases to ±kappa/√fan_in.

    The fan-in is that of the layer's weight: the inputs of one output unit, a conv's kernel
    included. A bias takes that of its layer. Made to run after every update.

    Attributes:
        kappa: the bound, in units of 1/√fan_in; PyTorch's default initializer draws within ±1.
        include_head: whether output layers are clipped.
    """

    policies = ("keep", "leave")

    kappa: PositiveFloat = 1.0
    include_head: bool = True

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state; refuse a scope without a weight to clip."""
        check_matrices(network, blocks, self.include_head, self.name)
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the clipped values; branch-free, without waiting."""
        weights = matrices(context.network, context.network.blocks, self.include_head)
        bounds = {b.layer: self.kappa / math.sqrt(b.view[0].numel()) for b in weights}
        clipped = [b for b in context.blocks if b.role in ("weight", "bias") and b.layer in bounds]
        # Of an infinite weight 0 times is not a number: that a run diverged is not clipped away.
        return [
            Assign(b, b.view.clamp(-bounds[b.layer], bounds[b.layer]).add(b.view, alpha=0))
            for b in clipped
        ]
