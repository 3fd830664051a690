"""Slow twin of normalize-and-project (NaP, Lyle et al. 2024).

LayerNorm before every nonlinearity, no bias where it makes one redundant, and after each update
W <- W * ||W_0|| / ||W|| per matrix. Scale and offset of the norms: `drop` (none), `project`
(sqrt(||gamma||^2 + ||beta||^2) back to its start) or `regularise` (a penalty towards 1 and 0).
"""

import math

import torch
from torch import Tensor


def norm(tensor: Tensor) -> float:
    """Root of the sum of squares, in float64."""
    return math.sqrt(sum(float(entry) ** 2 for entry in tensor.detach().reshape(-1)))


def members(weight: Tensor) -> list[Tensor]:
    """The matrices of a weight: itself, or the members of a stack (3-D linear, 5-D conv)."""
    return list(weight) if weight.ndim in (3, 5) else [weight]


def norms(weights: list[Tensor]) -> list[list[float]]:
    """Norms of each matrix of each weight, to be kept as the initial ones."""
    return [[norm(matrix) for matrix in members(weight)] for weight in weights]


def rescaled(tensor: Tensor, factor: float) -> Tensor:
    """A copy times `factor`, worked out in float64."""
    return (tensor.detach().double() * factor).to(tensor.dtype)


def project(weights: list[Tensor], initial_norms: list[list[float]]) -> list[Tensor]:
    """New weights with every matrix at its initial norm; a zero matrix stays."""
    result = []
    for weight, initial in zip(weights, initial_norms, strict=True):
        new = []
        for matrix, wanted in zip(members(weight), initial, strict=True):
            size = norm(matrix)
            new.append(rescaled(matrix, wanted / size if size > 0 else 1.0))
        result.append(torch.stack(new) if weight.ndim in (3, 5) else new[0])
    return result


def scale_offset_norm(gamma: Tensor, beta: Tensor) -> float:
    """sqrt(||gamma||^2 + ||beta||^2)."""
    return math.sqrt(norm(gamma) ** 2 + norm(beta) ** 2)


def project_scale_offset(gamma: Tensor, beta: Tensor, initial: float) -> tuple[Tensor, Tensor]:
    """`project`: one factor for both brings their joint norm back to `initial`."""
    size = scale_offset_norm(gamma, beta)
    factor = initial / size if size > 0 else 1.0
    return rescaled(gamma, factor), rescaled(beta, factor)


def regularise(pairs: list[tuple[Tensor, Tensor]], coef: float) -> Tensor:
    """`regularise`: coef * (sum (gamma - 1)^2 + sum beta^2) over all norms, differentiable."""
    total = torch.zeros((), dtype=torch.float64)
    for gamma, beta in pairs:
        total = total + coef * ((gamma.double() - 1).square() + beta.double().square()).sum()
    return total


def layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Each sample minus its mean over its root variance; axis 1 carries scale and shift.

    (B, N): over N. (B, C, H, W): over all three axes, with a scale and a shift per channel.
    """
    dims = tuple(range(1, x.ndim))
    centred = x - x.mean(dims, keepdim=True)
    normed = centred / torch.sqrt(centred.square().mean(dims, keepdim=True) + eps)
    shape = (-1, *(1,) * (x.ndim - 2))
    normed = normed if gamma is None else normed * gamma.view(shape)
    return normed if beta is None else normed + beta.view(shape)
