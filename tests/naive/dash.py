"""Slow twin of DASH (Shin et al. 2024): shrink what disagrees with the descent direction.

Before a new stage, over batches of all data so far and with the weights held still:
G <- (1 - alpha) G + alpha (-dL/dW). Then each neuron's vector is multiplied by
clamp(cos(G, W), coef, 1). Norm layers are not given to these functions.
"""

import math

import numpy as np
import torch
from torch import Tensor


def cosine(a: list[float], b: list[float]) -> float:
    """Cosine of the angle between two vectors; each counts as 1e-8 long at least."""
    product = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = [max(math.sqrt(sum(x * x for x in vector)), 1e-8) for vector in (a, b)]
    return product / (lengths[0] * lengths[1])


def flat(tensor: Tensor) -> list[float]:
    """The entries as Python floats."""
    return [float(entry) for entry in tensor.detach().double().reshape(-1)]


def shrink_factors(w: Tensor, g: Tensor, coef: float) -> Tensor:
    """Factors of the neurons of `w`, float64, of the shape of its leading axes.

    A bias (1-D) is one vector: a 0-d tensor. A linear weight has one per row: (N,). A
    convolution has one per kernel over its kernel positions: (C_out, C_in).
    """
    leading = {1: 0, 2: 1}.get(w.ndim, 2)
    factors = torch.empty(w.shape[:leading], dtype=torch.float64)
    for index in np.ndindex(*factors.shape):
        factors[index] = min(max(cosine(flat(g[index]), flat(w[index])), coef), 1.0)
    return factors


def accumulate(gradients: list[Tensor], alpha: float) -> Tensor:
    """G of one tensor after its gradients of each batch in order, float64."""
    total = torch.zeros(gradients[0].shape, dtype=torch.float64)
    for gradient in gradients:
        g = gradient.detach()
        for index in np.ndindex(*total.shape):
            total[index] = (1.0 - alpha) * float(total[index]) + alpha * -float(g[index])
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
