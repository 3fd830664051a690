"""Full reset: Nikishin et al. 2022 for periodic resets; the baseline of every paper here."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlplast.core.method.method import Assign, Context, Edit, Method, method
from rlplast.core.method.once import plain

__all__ = ["FullReset", "full_reset"]


@method("full_reset", source="Nikishin et al. 2022; baseline of FIRE Sec. 5")
@dataclass(frozen=True)
class FullReset(Method):
    """Give every layer initial weights again: a new draw or θ0.

    Everything in scope is edited: weights, biases, norm layers (scale 1, shift 0, running
    statistics at their start), embeddings, heads; a tied tensor once.

    Attributes:
        init: ``fresh`` draws from each layer's initializer and the firing's own stream; ``stored``
            returns to θ0, as official code does.
    """

    init: Literal["fresh", "stored"] = "fresh"

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan new values for every Block in scope, buffers included."""
        generator = context.stream()
        network = context.network
        if self.init == "stored":
            return [Assign(b, network.initial[b.name]) for b in context.blocks]
        return [Assign(b, network.fresh(b, generator)) for b in context.blocks]


full_reset = plain(FullReset)
"""Reset a model once, in place."""
