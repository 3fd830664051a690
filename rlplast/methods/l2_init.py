"""L2 Init: Kumar et al. 2023; the form of the SWR paper, Appendix D.2."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Context, Method, State, method
from rlplast.methods.l2 import sum_of_squares
from rlplast.metrics.ranks import at_least_float32

__all__ = ["L2Init"]


@method("l2_init", source="Kumar et al. 2023; SWR paper, Appendix D.2")
@dataclass(frozen=True)
class L2Init(Method):
    """Pull every parameter towards its initial value: coef/2 · ‖θ − θ0‖².

    The same tensors as in `l2` count. θ0 is the run's, also after a hook has drawn weights anew.

    Attributes:
        coef: strength λ.
        reduce: ``sum``, or ``mean``: of the squares of a tensor, as in Chung et al. 2024's code.
    """

    coef: NonNegativeFloat = 1e-2
    reduce: Literal["sum", "mean"] = "sum"

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef/2 · Σ (θ − θ0)² over the Blocks, or the sum of their means."""
        now = [at_least_float32(block.live()) for block in context.blocks]
        start = [at_least_float32(context.network.initial[block.name]) for block in context.blocks]
        moved = torch._foreach_sub(now, start)
        if self.reduce == "mean":
            moved = torch._foreach_div(moved, [float(t.numel()) ** 0.5 for t in moved])
        return self.coef / 2 * sum_of_squares(moved)
