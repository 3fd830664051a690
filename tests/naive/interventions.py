"""Slow float64 twins of the one-shot and every-update methods, in NumPy loops.

Written from the published formulas alone: no code is shared with the library, nothing is
batched, and every matrix is worked on by itself in float64.
"""

import math
from dataclasses import dataclass

import numpy as np

# (a, b, c) of X <- a X + b X (X^T X) + c X (X^T X)^2.
POLYNOMIALS = {"cubic": (1.5, -0.5, 0.0), "quintic": (2.0, -1.5, 0.5)}


def newton_schulz_twin(matrix: np.ndarray, iterations: int, polynomial: str) -> np.ndarray:
    """`iterations` steps from W / ||W||, on whichever side the polynomial is written."""
    a, b, c = POLYNOMIALS[polynomial]
    x = matrix.astype(np.float64)
    x = x / math.sqrt(sum(float(entry) ** 2 for entry in x.ravel()))
    for _ in range(iterations):
        gram = x.T @ x
        x = a * x + b * (x @ gram) + c * (x @ gram @ gram)
    return x


def polar_twin(matrix: np.ndarray) -> np.ndarray:
    """The factor of W with orthonormal rows or columns; full rank only."""
    w = matrix.astype(np.float64)
    rows, columns = w.shape
    gram = w.T @ w if rows >= columns else w @ w.T
    values, vectors = np.linalg.eigh(gram)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return w @ root if rows >= columns else root @ w


def fire_twin(weight: np.ndarray, iterations: int, polynomial: str, groups: int = 1) -> np.ndarray:
    """FIRE of one weight, `[d_out, d_in]` or `[C_out, C_in / groups, *kernel]`."""

    def project(matrix: np.ndarray) -> np.ndarray:
        if polynomial == "exact":
            return polar_twin(matrix)
        return newton_schulz_twin(matrix, iterations, polynomial)

    d_out, d_in = weight.shape[0] // groups, weight.shape[1]
    kernel = weight.shape[2:]
    scale = math.sqrt(d_out / d_in) / math.prod(kernel)
    result = np.empty(weight.shape, dtype=np.float64)
    for group in range(groups):
        rows = slice(group * d_out, (group + 1) * d_out)
        for position in np.ndindex(*kernel):
            where = (rows, slice(None), *position)
            result[where] = scale * project(np.asarray(weight[where]))
    return result


@dataclass
class SwrLayer:
    """One layer in forward order: its kind, scale or weight, and shift or bias.

    `kind` is conv, norm (`weight` None without affine parameters) or head (a linear layer of
    the classifier).
    """

    kind: str
    weight: np.ndarray | None
    bias: np.ndarray | None


def swr_twin(
    layers: list[SwrLayer],
    anchors: list[float],
    coef: float,
    coef_head: float,
    rule: str,
) -> tuple[list[SwrLayer], float]:
    """Layers after one SWR update, and the factor of the network's output.

    Anchors are the norms of the weights at initialisation. A norm without parameters is a
    layer with c = 1: it still forgets the scale of its input.
    """
    last_norm = 0
    for number, layer in enumerate(layers, start=1):
        if layer.kind == "norm":
            last_norm = number
    cumulative, result = 1.0, []
    for number, (layer, anchor) in enumerate(zip(layers, anchors, strict=True), start=1):
        strength = coef_head if layer.kind == "head" else coef
        factor = 1.0
        if layer.weight is not None:
            norm = math.sqrt(sum(float(entry) ** 2 for entry in layer.weight.ravel()))
            if norm > 0:
                factor = (strength * anchor + (1 - strength) * norm) / norm
        if rule == "exact":
            restart = layer.kind == "norm"
        else:
            restart = number < last_norm
        cumulative = factor if restart else factor * cumulative
        weight = None if layer.weight is None else factor * layer.weight.astype(np.float64)
        bias = None if layer.bias is None else cumulative * layer.bias.astype(np.float64)
        result.append(SwrLayer(layer.kind, weight, bias))
    return result, cumulative


def shrink_perturb_twin(theta: np.ndarray, start: np.ndarray, coef: float) -> np.ndarray:
    """The one-coefficient form: `start` is the stored initial value or a fresh draw."""
    return shrink_noise_twin(theta, start, 1.0 - coef, coef)


def shrink_noise_twin(
    theta: np.ndarray, draw: np.ndarray, shrink: float, noise: float
) -> np.ndarray:
    """The two-coefficient form: a share of the weights plus a small share of a fresh draw."""
    return shrink * theta.astype(np.float64) + noise * draw.astype(np.float64)
