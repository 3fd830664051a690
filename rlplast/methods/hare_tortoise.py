"""Hare & Tortoise: Lee et al. 2024 (Slow and Steady Wins the Race), `src/trainers/base.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.validation import Fraction
from rlplast.metrics.ranks import at_least_float32

__all__ = ["HareTortoise"]


@method("hare_tortoise", source="Lee et al. 2024, Algorithm 1; its code, src/trainers/base.py")
@dataclass(frozen=True)
class HareTortoise(Method):
    """Keep a slow average of the weights, evaluate it, and set the weights to it at intervals.

    After every update slow ← momentum·slow + (1 − momentum)·fast, for all trainable tensors in
    scope and the running statistics of norm layers. The slow copy begins as the weights after the
    first update that the hook sees (ours). At its schedule the hook sets the weights to it.
    Evaluations use it always.

    Attributes:
        momentum: share of the slow copy that stays at an update.
    """

    policies = ("keep", "leave")

    momentum: Fraction = 0.999

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the slow copy, float32 at least, and how many updates it has followed."""
        averaged = [block for block in blocks if _is_averaged(block)]
        if blocks and not averaged:
            raise NothingToEdit(f"hare_tortoise finds no weights in network {network.name!r}")
        slow = {f"slow/{block.name}": at_least_float32(block.view).clone() for block in averaged}
        device = blocks[0].view.device if blocks else None
        return slow | {"updates": torch.zeros((), dtype=torch.int64, device=device)}

    def follow(self, context: Context, state: State) -> list[Edit]:
        """Plan the average; branch-free, without waiting."""
        updates = state["updates"]
        averaged = _averaged(context.blocks, state)
        slow = list(averaged.values())
        fast = [at_least_float32(block.view) for block in averaged]
        moved = torch._foreach_lerp(slow, fast, 1 - self.momentum)
        moved = [torch.where(updates > 0, m, f) for m, f in zip(moved, fast, strict=True)]
        edits: list[Edit] = [Assign(s, m) for s, m in zip(slow, moved, strict=True)]
        return [*edits, Assign(updates, updates + 1)]

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the return to the slow copy; nothing before the first update."""
        if not int(state["updates"]):
            return []
        return [Assign(b, slow) for b, slow in _averaged(context.blocks, state).items()]

    def evaluation(self, network: Network, state: State) -> Mapping[Block, Tensor]:
        """Return the slow copy, once it has followed an update."""
        return _averaged(network.blocks, state) if int(state["updates"]) else {}


def _averaged(blocks: Sequence[Block], state: State) -> dict[Block, Tensor]:
    """Return the slow copy of each Block that has one."""
    return {b: state[f"slow/{b.name}"] for b in blocks if f"slow/{b.name}" in state}


def _is_averaged(block: Block) -> bool:
    statistics = block.kind == "norm" and block.role == "buffer" and block.view.is_floating_point()
    return block.trainable or statistics
