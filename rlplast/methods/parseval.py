"""Parseval: Chung et al. 2024; as the FIRE paper uses it, Appendix A.4.1."""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Method, State, method
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Parseval", "deviation"]


class _Gram(torch.autograd.Function):
    """W Wᵀ, whose gradient takes one product instead of autograd's two."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight @ weight.mT

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (grad,), (weight,) = grad_outputs, ctx.saved_tensors
        return (grad + grad.mT) @ weight


def deviation(weight: Tensor, scale: float = 1.0) -> Tensor:
    """Return ‖W Wᵀ − s I‖², summed over leading dimensions, 0-d, at least float32.

    Args:
        weight: (..., rows, columns).
        scale: s, the square of the singular values at the minimum.
    """
    weight = at_least_float32(weight)
    *many, number, columns = weight.shape
    surplus = max(0, number - columns)
    gram = _Gram.apply(weight.mT if surplus else weight)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    floor = surplus * scale**2 * torch.Size(many).numel()
    return (gram - scale * identity).square().sum() + floor


@method("parseval", source="Chung et al. 2024; FIRE paper, Appendix A.4.1")
@dataclass(frozen=True)
class Parseval(Method):
    """Pull every weight matrix towards orthogonal rows of length √scale: coef · Σ‖WWᵀ − sI‖².

    Weights of linear and conv layers count, heads too; a conv's as the matrix (C_out,
    C_in·kh·kw), each group by itself. A matrix with more rows than columns keeps at least
    (d_out − d_in)·s².

    Attributes:
        coef: strength λ.
        scale: s, the square of the singular values at the minimum.
        norms: whether Σ(γ² − s)² over the scales γ of norm layers is added, as in FIRE's code.
    """

    coef: NonNegativeFloat = 1e-3
    scale: PositiveFloat = 1.0
    norms: bool = False

    def covers(self, block: Block) -> bool:
        """Return whether a Block is the weight of a linear or conv layer, or a scale if asked."""
        if block.role == "scale":
            return self.norms
        return block.role == "weight" and block.kind in ("linear", "conv")

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef · Σ‖WWᵀ − sI‖² over the Blocks."""
        terms = []
        for block in context.blocks:
            weight = block.live()
            if block.role == "scale":
                terms.append((at_least_float32(weight).square() - self.scale).square().sum())
                continue
            groups = int(getattr(block.module, "groups", 1)) if block.kind == "conv" else 1
            matrices = weight.reshape(groups, weight.shape[0] // groups, -1)
            terms.append(deviation(matrices, self.scale))
        return self.coef * torch.stack(terms).sum()
