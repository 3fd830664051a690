"""Curvature of a loss: eigenvalues of its Hessian, by products with vectors.

- `products`: v ↦ Hv, by differentiating twice.
- `hessian_max_eigenvalue`, `hessian_spectral_norm`: by power iteration.
- `hessian_spectrum`: nodes and weights of the density of eigenvalues, by stochastic Lanczos.
- `Spectrum`: those, their smoothed density, and the few numbers that a run logs.

The Hessian is that of the mean loss of one batch in all trainable parameters of a network. It is
never built: a product costs two backward passes. Draws come from a generator of its own.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlplast.core.registry import register

__all__ = [
    "IN_A_RUN",
    "Spectrum",
    "hessian_max_eigenvalue",
    "hessian_spectral_norm",
    "hessian_spectrum",
    "products",
]

Product = Callable[[Tensor], Tensor]
STEPS, TOLERANCE = 20, 1e-4  # of Hare & Tortoise's code
IN_A_RUN = {"probes": 10, "steps": 30}  # 300 products a measurement


def products(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """Return v ↦ Hv, for the Hessian H of a loss in its parameters.

    Args:
        loss: 0-d; its graph must be differentiable twice, which attention's fast kernels are not.
        parameters: any shapes, of one device; entries are counted in their order.

    Returns:
        A function of a vector, shape (entries,); it may be called again and again.
    """
    own = list(parameters)
    sizes, shapes = [p.numel() for p in own], [p.shape for p in own]
    options: dict[str, Any] = {
        "retain_graph": True,
        "allow_unused": True,
        "materialize_grads": True,
    }
    gradients = torch.autograd.grad(loss, own, create_graph=True, **options)
    bent = [g.requires_grad for g in gradients]  # the gradient of a linear loss is constant

    def product(vector: Tensor) -> Tensor:
        parts = [v.view(s) for v, s in zip(vector.split(sizes), shapes, strict=True)]
        kept = [i for i, curved in enumerate(bent) if curved]
        if not kept:
            return torch.zeros_like(vector)
        found = torch.autograd.grad(
            [gradients[i] for i in kept], own, [parts[i].to(gradients[i]) for i in kept], **options
        )
        return torch.cat([f.flatten() for f in found]).to(vector)

    return product


def _dominant(product: Product, vector: Tensor, steps: int, tolerance: float) -> Tensor:
    """Return the eigenvalue of largest size, with its sign, by power iteration."""
    value = torch.zeros((), dtype=vector.dtype, device=vector.device)
    for _ in range(steps):
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=1e-30)
        image = product(vector)
        before, value = value, vector @ image
        if bool((value - before).abs() <= tolerance * value.abs()):
            break
        vector = image
    return value


def _start(parameters: Sequence[Tensor], seed: int) -> Tensor:
    size = sum(p.numel() for p in parameters)
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(parameters[0].device)


@register("metrics", "hessian_spectral_norm", source="power iteration on Hessian-vector products")
def hessian_spectral_norm(
    loss: Tensor,
    parameters: Sequence[Tensor],
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Tensor:
    """Largest absolute eigenvalue of the loss's Hessian.

    Args:
        loss: 0-d tensor whose graph is differentiable twice.
        parameters: parameters of the Hessian, all on one device.
        steps: most Hessian-vector products. The estimate is a lower bound.
        tolerance: relative change of the estimate below which the iteration stops.
        seed: seed of the first vector.

    Returns:
        0-d float64 tensor in ``[0, inf)``.
    """
    return _dominant(products(loss, parameters), _start(parameters, seed), steps, tolerance).abs()


@register("metrics", "hessian_max_eigenvalue", source="Lee et al. 2024 (Hare & Tortoise)")
def hessian_max_eigenvalue(
    loss: Tensor,
    parameters: Sequence[Tensor],
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Tensor:
    """Largest eigenvalue of the loss's Hessian: its sharpness.

    Power iteration finds the eigenvalue λ with the largest |λ|. If λ is negative, a second
    iteration on H + |λ|·I finds the largest eigenvalue.

    Args:
        loss: 0-d tensor whose graph is differentiable twice.
        parameters: parameters of the Hessian, all on one device.
        steps: most products of each iteration. The estimate is a lower bound.
        tolerance: relative change of the estimate below which the iteration stops.
        seed: seed of the first vector.

    Returns:
        0-d float64 tensor.
    """
    product, start = products(loss, parameters), _start(parameters, seed)
    value = _dominant(product, start, steps, tolerance)
    if bool(value >= 0):
        return value
    shift = value.abs()
    return _dominant(lambda v: product(v) + shift * v, start, steps, tolerance) - shift


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Where the eigenvalues of a Hessian lie: a sum of point masses.

    Attributes:
        nodes: estimated eigenvalues, ascending, shape (points,), float64.
        weights: the share of eigenvalues near each node, summing to 1, shape (points,).
    """

    nodes: Tensor
    weights: Tensor

    def density(self, at: Tensor, sigma: float) -> Tensor:
        """Return the density smoothed by a Gaussian of width `sigma`, of the shape of `at`."""
        apart = (at.double()[..., None] - self.nodes) / sigma
        bells = torch.exp(-0.5 * apart.square()) / (sigma * (2 * torch.pi) ** 0.5)
        return (bells * self.weights).sum(-1)

    def summary(self) -> dict[str, Tensor]:
        """Return what a run logs, 0-d float64 tensors.

        - ``min``, ``max``: the extreme nodes, which lie inside the range of the eigenvalues.
        - ``abs_q90``: the size that 90% of the eigenvalues do not exceed (ours).
        - ``negative_share``: of Σ|λ|, the part of negative λ (Ghorbani et al.); 0 without any.
        """
        size, order = self.nodes.abs().sort()
        shares = self.weights[order].cumsum(0)
        mass = self.weights * self.nodes.abs()
        return {
            "min": self.nodes[0],
            "max": self.nodes[-1],
            "abs_q90": size[(shares < 0.9).sum().clamp(max=len(size) - 1)],
            "negative_share": mass[self.nodes < 0].sum() / mass.sum().clamp(min=1e-300),
        }


@register("metrics", "hessian_spectrum", source="Ghorbani et al. 2019, stochastic Lanczos")
def hessian_spectrum(
    loss: Tensor,
    parameters: Sequence[Tensor],
    probes: int = 10,
    steps: int = 80,
    seed: int = 0,
) -> Spectrum:
    """Density of the Hessian's eigenvalues; a run logs four numbers of it.

    Each probe is a random unit vector. Lanczos with full re-orthogonalisation turns H into a
    tridiagonal matrix. Its eigenvalues are the nodes, and the squared first components of its
    eigenvectors are their weights. The mean over probes estimates the density. A run uses
    `IN_A_RUN` (ours) and logs `Spectrum.summary`.

    Args:
        loss: 0-d tensor whose graph is differentiable twice.
        parameters: parameters of the Hessian, all on one device.
        probes: number of random vectors.
        steps: Lanczos steps per probe, at most the number of parameters. As many float64 copies of
            all parameters are kept in memory.
        seed: seed of the vectors.
    """
    product = products(loss, parameters)
    found = [_lanczos(product, _start(parameters, seed + i), steps) for i in range(probes)]
    nodes = torch.cat([nodes for nodes, _ in found])
    weights = torch.cat([weights for _, weights in found]) / probes
    order = nodes.argsort()
    return Spectrum(nodes[order], weights[order])


def _lanczos(product: Product, vector: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of one probe."""
    steps = min(steps, len(vector))
    basis = vector.new_zeros(steps, len(vector))
    diagonal, beside = [], []
    basis[0] = vector / torch.linalg.vector_norm(vector)
    for i in range(steps):
        image = product(basis[i])
        diagonal.append(basis[i] @ image)
        known = basis[: i + 1]
        for _ in range(2):  # twice is enough
            image = image - known.mT @ (known @ image)
        length = torch.linalg.vector_norm(image)
        if i + 1 == steps or bool(length <= 1e-10 * diagonal[0].abs().clamp(min=1e-10)):
            break  # the space that the vector reaches is exhausted
        beside.append(length)
        basis[i + 1] = image / length
    matrix = torch.diag(torch.stack(diagonal))
    if beside:
        off = torch.stack(beside)
        matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors[0].square()
