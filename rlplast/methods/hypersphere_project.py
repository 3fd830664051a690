"""Hypersphere projection: SimbaV2 (arXiv:2502.15280), Section 4; its code, `simbaV2_update.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.order import check_matrices, matrices
from rlplast.metrics.ranks import at_least_float32

__all__ = ["HypersphereProject"]

_SHORTEST = 1e-8  # of the official code


@method("hypersphere_project", source="SimbaV2, Section 4")
@dataclass(frozen=True)
class HypersphereProject(Method):
    """Scale each row of every weight matrix to length 1.

    A row is what one output unit reads: of a conv, the kernels of one output channel; a row of
    zeros stays. Made to run after every update. Without normalised features the network's function
    changes.

    Attributes:
        include_head: whether output layers are projected; SimbaV2 projects them.
    """

    policies = ("keep", "leave")

    include_head: bool = True

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state; refuse a scope without a weight to project."""
        check_matrices(network, blocks, self.include_head, self.name)
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the unit rows of every weight; branch-free, without waiting."""
        edits: list[Edit] = []
        for block in matrices(context.network, context.blocks, self.include_head):
            rows = at_least_float32(block.view).flatten(1)
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=_SHORTEST)
            edits.append(Assign(block, (rows / length).view(block.view.shape)))
        return edits
