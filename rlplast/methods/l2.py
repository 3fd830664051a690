"""L2: Krogh & Hertz 1991; the form of the SWR paper, Appendix D.2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlplast.core.method.method import Context, Method, State, method
from rlplast.metrics.ranks import at_least_float32

__all__ = ["L2", "sum_of_squares"]


class _SumOfSquares(torch.autograd.Function):
    """Σ x² over all tensors, whose gradient 2x is one pass over them: faster than autograd's."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.stack([t.square().sum() for t in tensors]).sum()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(torch._foreach_mul(list(ctx.saved_tensors), 2 * grad_outputs[0]))


def sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    """Return Σ x² of all entries of all tensors, 0-d, at least float32; differentiable once."""
    return _SumOfSquares.apply(*(at_least_float32(tensor) for tensor in tensors))


@method("l2", source="Krogh & Hertz 1991; SWR paper, Appendix D.2")
@dataclass(frozen=True)
class L2(Method):
    """Pull every parameter towards zero: coef/2 · ‖θ‖².

    Every trainable tensor counts: weights, biases, norm layers' scale and shift, embeddings,
    heads, a SAC's log α; a tied tensor once, buffers never. The gradient, coef·θ, passes
    through the optimizer; AdamW's decoupled weight decay does not.

    Attributes:
        coef: strength λ.
    """

    coef: NonNegativeFloat = 1e-2

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef/2 · Σ θ² over the Blocks."""
        return self.coef / 2 * sum_of_squares([block.live() for block in context.blocks])
