"""Symmetric matrix products, by halves."""

import torch
from torch import Tensor

__all__ = ["HALVED", "symmetric_product"]

HALVED = 256  # columns from which a product in parts is faster than whole


def symmetric_product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return A·B, (..., n, n), where that is symmetric: XᵀX, or polynomials of a symmetric matrix.

    Large products need 5/8 to 3/4 of the multiplications. While gradients are recorded, it is an
    ordinary product.

    Args:
        a: shape (..., n, k).
        b: shape (..., k, n).
        out: where to write it; default: new memory.
    """
    n = a.shape[-2]
    if n < HALVED or torch.is_grad_enabled():
        return torch.matmul(a, b, out=out)
    out = a.new_empty(*a.shape[:-1], n) if out is None else out
    top, bottom = slice(n // 2), slice(n // 2, n)
    symmetric_product(a[..., top, :], b[..., top], out[..., top, top])
    symmetric_product(a[..., bottom, :], b[..., bottom], out[..., bottom, bottom])
    torch.matmul(a[..., top, :], b[..., bottom], out=out[..., top, bottom])
    out[..., bottom, top] = out[..., top, bottom].mT
    return out
