"""AdamO: AdamW beside a pull of every weight matrix towards an isometry."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import RULES
from rlplast.core.validation import Betas
from rlplast.optimizers.factories import Groups, optimizer, split

__all__ = ["AdamO", "isometry_gradient"]


def isometry_gradient(weight: Tensor) -> Tensor:
    """Return the gradient of ‖WᵀW − I‖², or of ‖WWᵀ − I‖² of a matrix wider than high.

    Args:
        weight: (…, rows, columns), or a kernel of four dimensions, the matrix of its first one.
    """
    matrix = weight.flatten(1) if weight.ndim == 4 else weight
    wide = matrix.shape[-2] < matrix.shape[-1]
    tall = matrix.mT if wide else matrix
    gram = tall.mT @ tall
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    gradient = 4 * (tall @ gram)
    return (gradient.mT if wide else gradient).reshape(weight.shape)


class AdamO(AdamW):
    """θ ← (1 − lr·λ)θ − lr·m̂/(√v̂ + ε) − lr·s·∇R(θ), where R is 0 where every matrix is isometric.

    m and v are means of the loss's gradient alone. λ is `weight_decay`, and s the option `isometry`
    of a parameter group; tensors of fewer than two dimensions have no R. Other options are AdamW's.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        isometry: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, **options)
        for group in self.param_groups:
            group.setdefault("isometry", isometry)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        moves = [
            (p, group, isometry_gradient(p))
            for group in self.param_groups
            for p in group["params"]
            if group["isometry"] and p.ndim >= 2 and p.grad is not None
        ]
        super().step()
        for p, group, gradient in moves:
            p.sub_(gradient * (group["lr"] * group["isometry"]))
        return loss


@optimizer(
    "adam_o",
    source="Rosseau et al. 2026, AdamO (arXiv:2606.09762), equations 16, 19 and 20",
    state={AdamO: RULES[AdamW]},
)
def adam_o(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    isometry: NonNegativeFloat = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
) -> Optimizer:
    """AdamW beside a pull of linear and conv weights towards isometries."""
    weights = Network("model", module).select(
        lambda b: b.role == "weight" and b.kind in ("linear", "conv")
    )
    matrices = {b.param for b in weights}
    known = next(module.parameters(), None) is not None

    def pulled(p: Tensor) -> bool:
        return p in matrices if known else p.ndim >= 2

    parts = [group | {"isometry": isometry} for group in split(groups, pulled)]
    parts += [group | {"isometry": 0.0} for group in split(groups, lambda p: not pulled(p))]
    return AdamO(parts, lr, betas, eps, fused=True)
