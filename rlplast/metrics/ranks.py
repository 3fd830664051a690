"""Ranks and norms of one matrix from its singular values, for weights and features alike.

A matrix is ``[n, m]``, or ``[n, ...]`` with the rest flattened: a conv weight is its
``C_out x (C_in * kh * kw)`` matrix. A zero matrix has rank 0 under every definition. The
decomposition may make a GPU wait for its error code; nothing else here does.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register

__all__ = [
    "as_matrix",
    "at_least_float32",
    "effective_rank",
    "singular_values",
    "spectral_norm",
    "spectral_summary",
    "srank",
    "stable_rank",
]

# Partial sums this close (relatively) to the threshold count as having reached it, so
# that k equal singular values out of n give the exact share k / n.
_TIE = 1e-12


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return `tensor` itself if it is float32 or float64, else a float32 copy."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def as_matrix(tensor: Tensor) -> Tensor:
    """Return `tensor` with everything after its first dimension flattened, ``[n, m]``.

    Raises:
        ConfigError: for a tensor of fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ConfigError(
            f"tensor of shape {list(tensor.shape)}: a matrix metric needs at least 2 dimensions; "
            "leave biases and norm parameters out"
        )
    return tensor.flatten(1)


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of `as_matrix(matrix)`, largest first, in float64.

    All are NaN if any entry is not finite, instead of an error from the solver.
    """
    # Where gradients are recorded torch asks LAPACK for the vectors too, which may not converge.
    matrix = at_least_float32(as_matrix(matrix.detach()))
    finite = matrix.isfinite().all()
    sigma = torch.linalg.svdvals(torch.where(finite, matrix, 0.0))
    return torch.where(finite, sigma.double(), torch.nan)


def _srank(sigma: Tensor, delta: float) -> Tensor:
    partial = sigma.cumsum(0)
    total = partial[-1]
    rank = 1.0 + (partial < (1.0 - delta) * total * (1.0 - _TIE)).sum()
    return torch.where(total > 0, rank, total)  # 0 for a zero matrix, NaN stays NaN


def _effective_rank(sigma: Tensor) -> Tensor:
    total = sigma.sum()
    entropy = torch.special.entr(sigma / total).sum()
    return torch.where(total > 0, entropy.exp(), total)


def _stable_rank(sigma: Tensor) -> Tensor:
    largest = sigma[0]
    return torch.where(largest > 0, (sigma / largest).square().sum(), largest)


@register("metrics", "spectral_norm", source="largest singular value")
def spectral_norm(matrix: Tensor) -> Tensor:
    """Largest singular value of the matrix."""
    return singular_values(matrix)[0]


@register(
    "metrics", "srank", source="Kumar et al. 2021, 'Implicit Under-Parameterization', section 3"
)
def srank(matrix: Tensor, *, delta: Annotated[float, Field(gt=0, lt=1)] = 0.01) -> Tensor:
    """Smallest k such that the k largest singular values hold a share 1 - delta of their sum.

    This is not the stable rank: see `stable_rank`.

    Examples:
        >>> srank(torch.eye(100)).item()
        99.0
    """
    return _srank(singular_values(matrix), delta)


@register("metrics", "effective_rank", source="Roy & Vetterli 2007, 'The effective rank', eq. 4")
def effective_rank(matrix: Tensor) -> Tensor:
    """Exponential of the entropy of the singular values, normalised to sum to 1."""
    return _effective_rank(singular_values(matrix))


@register("metrics", "stable_rank", source="Rudelson & Vershynin 2007: ||A||_F^2 / ||A||_2^2")
def stable_rank(matrix: Tensor) -> Tensor:
    """Squared Frobenius norm, divided by the squared spectral norm."""
    return _stable_rank(singular_values(matrix))


def spectral_summary(matrix: Tensor, *, delta: float = 0.01) -> dict[str, Tensor]:
    """Return all four metrics of this module, by name, from one decomposition."""
    sigma = singular_values(matrix)
    return {
        "spectral_norm": sigma[0],
        "srank": _srank(sigma, delta),
        "effective_rank": _effective_rank(sigma),
        "stable_rank": _stable_rank(sigma),
    }
