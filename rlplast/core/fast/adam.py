"""A step of Adam that compiles with the rest of an update."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["adam_corrections", "adam_step"]


def adam_corrections(rows: Sequence[tuple[Tensor, Sequence[float]]]) -> Tensor:
    """Count an update in steps, and return Adam's bias corrections, 1 − βᵗ: (parameters, 2).

    A row has a parameter's number of steps, 0-d, which grows by one, and its betas.
    """
    corrections = []
    for step, betas in rows:
        step.add_(1)
        # 1 − βᵗ; subtracting in float32 would leave four digits of it at β = 0.999.
        corrections += [-torch.expm1(step * math.log(max(beta, 1e-45))) for beta in betas]
    # Left to `adam_step`, compiled code would compute them for every 16 weights.
    return torch.stack(corrections).view(-1, 2)


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    constants: Mapping[str, Any],
    corrections: Tensor,
    lr_per_update: Tensor,
    decoupled: bool,
) -> None:
    """Take a step of Adam or AdamW in place, as torch's fused kernels do.

    Source: Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2. `state` and
    `constants` are torch's own, `corrections` is a row of `adam_corrections`, and `lr_per_update`
    is 0-d. AdamW's weight decay is `decoupled` from the gradient.
    """
    (beta1, beta2), decay = constants["betas"], constants["weight_decay"]
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    if decay and decoupled:
        parameter.mul_(1 - lr_per_update * decay)
    elif decay:
        gradient = gradient + decay * parameter
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = corrections.unbind()
    size = square.sqrt() / second.sqrt() + constants["eps"]
    parameter.sub_(lr_per_update / first * mean / size)
