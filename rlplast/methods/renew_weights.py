"""Selective weight reinitialisation: Hernandez-Garcia et al. 2025 (arXiv:2508.00212), its code."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.validation import Count, Share
from rlplast.methods.recycling import largest

__all__ = ["RenewWeights"]

_KINDS = ("linear", "conv", "norm", "embedding")


@method("renew_weights", source="Hernandez-Garcia et al. 2025 (arXiv:2508.00212); its code")
@dataclass(frozen=True)
class RenewWeights(Method):
    """Give the least useful entries of every weight, bias and norm tensor a new start.

    Each tensor of n entries gives up ⌊n·share⌋ of them, and one more with the fraction as chance.
    An entry's utility is |w·g| or |w|. The gradient g is that of the network's loss, without
    penalties, on a probe batch; inside every update it is that of the update. A tensor that the
    loss does not reach is left then. Heads are renewed too, a tied tensor once.

    Attributes:
        share: of a tensor's entries that start anew, in [0, 1].
        utility: ``gradient``: |w·g|, to first order what the loss loses with the entry;
            ``magnitude``: |w|, which reads no data.
        value: ``resample`` draws the entry from its layer's initializer; ``mean`` gives it that
            initializer's mean: 0, or 1 for the scale of a norm layer.
        probe: samples of the probe batch.
    """

    reads = ("gradients",)
    policies = ("touched", "leave")

    share: Share = 0.1
    utility: Literal["gradient", "magnitude"] = "gradient"
    value: Literal["resample", "mean"] = "resample"
    probe: Count = 256

    def __post_init__(self) -> None:
        if self.utility == "magnitude":
            object.__setattr__(self, "reads", ())

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return no state."""
        if not any(map(_renewed, blocks)):
            raise NothingToEdit(
                f"renew_weights finds no weight, bias or norm tensor of a layer in network "
                f"{network.name!r}"
            )
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan new values of the entries with the lowest utilities."""
        generator = context.stream()
        chance = torch.rand((), generator=generator).item()  # one for all: in a stack, too
        edits: list[Edit] = []
        for block in filter(_renewed, context.blocks):
            number = math.floor(self.share * block.view.numel() + chance)
            # Drawn whole, so that what one tensor draws does not depend on the others.
            value = self._values(context, block, generator)
            utility = self._utilities(context, block)
            if number and utility is not None:
                edits.append(Assign(block, value, largest(-utility, number)))
        return edits

    def _utilities(self, context: Context, block: Block) -> Tensor | None:
        """Return the utility per entry; None where the loss does not reach the tensor."""
        size = block.view.abs()
        if self.utility == "magnitude":
            return size
        gradient = context.gradients.get(block.name)
        return None if gradient is None else size * gradient.abs().to(size)

    def _values(self, context: Context, block: Block, generator: torch.Generator) -> Tensor:
        if self.value == "resample":
            return context.network.fresh(block, generator)
        return torch.full_like(block.view, block.spec.start if block.role == "scale" else 0.0)


def _renewed(block: Block) -> bool:
    return block.role != "buffer" and block.kind in _KINDS
