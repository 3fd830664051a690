"""Slow twin of DASH (Shin et al. 2024): shrink what disagrees with the descent direction.

Before a new stage, over batches of all data so far and with the weights held still:
G <- (1 - alpha) G + alpha (-dL/dW). Then each neuron's vector is multiplied by
clamp(cos(G, W), coef, 1). Norm layers are not given to these functions.
"""

import numpy as np
import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two vectors; each counts as 1e-8 long at least."""
    a, b = (vector.detach().double().flatten() for vector in (a, b))
    return float(a @ b) / (max(float(a.norm()), 1e-8) * max(float(b.norm()), 1e-8))


def shrink_factors(w: Tensor, g: Tensor, coef: float) -> Tensor:
    """Factors of the neurons of `w`, float64, of the shape of its leading axes.

    A bias (1-D) is one vector: a 0-d tensor. A linear weight has one per row: (N,). A
    convolution has one per kernel over its kernel positions: (C_out, C_in).
    """
    leading = {1: 0, 2: 1}.get(w.ndim, 2)
    factors = torch.empty(w.shape[:leading], dtype=torch.float64)
    for index in np.ndindex(*factors.shape):
        factors[index] = min(max(cosine(g[index], w[index]), coef), 1.0)
    return factors


def accumulate(gradients: list[Tensor], alpha: float) -> Tensor:
    """G of one tensor after its gradients of each batch in order, float64."""
    total = torch.zeros(gradients[0].shape, dtype=torch.float64)
    for gradient in gradients:
        total = (1.0 - alpha) * total - alpha * gradient.detach().double()
    return total


def dash(
    tensors: list[Tensor], gradients_per_batch: list[list[Tensor]], alpha: float, coef: float
) -> list[Tensor]:
    """New tensors; `gradients_per_batch[b][t]` is the gradient of tensor t on batch b."""
    result = []
    for number, tensor in enumerate(tensors):
        total = accumulate([batch[number] for batch in gradients_per_batch], alpha)
        factors = shrink_factors(tensor, total, coef)
        new = tensor.detach().clone()
        for index in np.ndindex(*factors.shape):
            new[index] = (tensor[index].detach().double() * factors[index]).to(tensor.dtype)
        result.append(new)
    return result
