"""Spectral regularisation: Lewandowski et al. 2025 (arXiv:2406.06811)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Spectral"]


@method("spectral", source="Lewandowski et al. 2025, spectral regularisation, Appendix A.7")
@dataclass(frozen=True)
class Spectral(Method):
    """Pull the largest singular value of every weight towards 1, and biases towards 0.

    coef · Σ (σ₁(W)^power − 1)² + ‖b‖^(2·power) over linear and conv layers, and Σ (γ^power − 1)²
    + Σ β^(2·power) over norm layers. A conv is the matrix (C_out, C_in·kh·kw). σ₁ is uᵀWv, with
    one step of power iteration per update for u; it begins at θ0's own singular vector.

    Attributes:
        coef: strength λ.
        power: k of the paper.
    """

    coef: NonNegativeFloat = 1e-4
    power: Annotated[int, Field(ge=1, le=8)] = 2

    def covers(self, block: Block) -> bool:
        """Return whether the term reads a Block: weight, bias, scale or shift."""
        return block.kind in ("linear", "conv", "norm") and block.role != "other"

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return θ0's left singular vector of every weight, shape (d_out,)."""
        state = {}
        for block in blocks:
            if block.role == "weight":
                start = at_least_float32(network.initial[block.name]).flatten(1)
                u = torch.linalg.svd(start.double(), full_matrices=False).U[:, 0]
                state[block.name] = u.to(start.dtype)
        return state

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan one step of power iteration for every weight."""
        edits: list[Edit] = []
        for block in context.blocks:
            if block.name in state:
                matrix = at_least_float32(block.view).flatten(1)
                u = state[block.name]
                edits.append(Assign(u, _unit(matrix @ _unit(matrix.mT @ u))))
        return edits

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the sum over the Blocks."""
        terms = []
        for block in context.blocks:
            live = at_least_float32(block.live())
            if block.role == "weight":
                matrix, u = live.flatten(1), state[block.name]
                v = _unit(matrix.detach().mT @ u)
                terms.append(((u @ matrix @ v) ** self.power - 1).square())
            elif block.role == "bias":
                terms.append(live.square().sum() ** self.power)
            else:
                apart = live**self.power - (block.spec.start if block.role == "scale" else 0.0)
                terms.append(apart.square().sum())
        return self.coef * torch.stack(terms).sum()


def _unit(vector: Tensor) -> Tensor:
    return vector / torch.linalg.vector_norm(vector).clamp(min=1e-12)
