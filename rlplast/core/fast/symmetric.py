"""A product that is known to be symmetric, with few of its pairs of entries computed twice."""

from torch import Tensor

__all__ = ["HALVED", "symmetric_product"]

HALVED = 256  # columns from which a product in three parts is faster than whole


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """Return A·B where that is symmetric: XᵀX, or polynomials of one symmetric matrix.

    The part above the diagonal is copied below it. Both parts on the diagonal are cut in the same
    way, so that large products cost 5/8 to 3/4 of the multiplications, on every CPU and GPU.

    Args:
        a: shape (..., n, k).
        b: shape (..., k, n).

    Returns:
        Shape (..., n, n), in memory of its own.
    """
    n = a.shape[-2]
    if n < HALVED:
        return a @ b
    half = n // 2
    product = a.new_empty(*a.shape[:-1], n)
    product[..., :half, :half] = symmetric_product(a[..., :half, :], b[..., :half])
    product[..., half:, half:] = symmetric_product(a[..., half:, :], b[..., half:])
    above = a[..., :half, :] @ b[..., half:]
    product[..., :half, half:] = above
    product[..., half:, :half] = above.mT
    return product
