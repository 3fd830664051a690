"""Curvature of a loss: eigenvalues of its Hessian, by products with vectors.

The Hessian is that of the mean loss of one batch in all trainable parameters of a network. It is
never built: a product costs two backward passes. Draws come from a generator of its own.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from rlplast.core.registry import register
from rlplast.core.validation import check_value

__all__ = [
    "IN_A_RUN",
    "Spectrum",
    "hessian_max_eigenvalue",
    "hessian_spectral_norm",
    "hessian_spectrum",
    "products",
]

Product = Callable[[Tensor], Tensor]
STEPS, TOLERANCE = 20, 1e-4  # the numbers of Hare & Tortoise's code, there of power iteration
IN_A_RUN = {"probes": 10, "steps": 30}  # 300 products a measurement


def products(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """Return v ↦ Hv for vectors (entries,), for the Hessian H of a loss in its parameters.

    The graph of the 0-d loss must be differentiable twice, which attention's fast kernels are not.
    Entries are counted in the order of the parameters, all on one device.
    """
    sizes, shapes = [p.numel() for p in parameters], [p.shape for p in parameters]
    options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad(loss, parameters, create_graph=True, **options)
    gradients = [g.to_dense() if g.is_sparse else g for g in first]
    # The gradient of a linear loss is constant.
    bent = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]

    def product(vector: Tensor) -> Tensor:
        if not bent:
            return torch.zeros_like(vector)
        parts = [v.view(s) for v, s in zip(vector.split(sizes), shapes, strict=True)]
        weights = [parts[i].to(gradients[i]) for i in bent]
        images = torch.autograd.grad([gradients[i] for i in bent], parameters, weights, **options)
        dense = (image.to_dense() if image.is_sparse else image for image in images)
        return torch.cat([image.flatten() for image in dense]).to(vector)

    return product


def _start(parameters: Sequence[Tensor], seed: int) -> Tensor:
    size = sum(p.numel() for p in parameters)
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(parameters[0].device)


def _lanczos(product: Product, vector: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, after each product, the tridiagonal matrix so far and how long the next vector is."""
    steps = min(check_value("hessian: steps", steps, PositiveInt, STEPS), len(vector))
    basis = vector.new_zeros(steps, len(vector))
    diagonal, beside = [], []
    basis[0] = vector / torch.linalg.vector_norm(vector)
    for i in range(steps):
        image = product(basis[i])
        diagonal.append(basis[i] @ image)
        known = basis[: i + 1]
        # With products in float32, orthogonality to the last two alone is lost within 20 steps.
        for _ in range(2):  # twice is enough
            image = image - known.mT @ (known @ image)
        length = torch.linalg.vector_norm(image)
        matrix = torch.diag(torch.stack(diagonal))
        if beside:
            off = torch.stack(beside)
            matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
        yield matrix, length
        if i + 1 == steps or bool(length <= 1e-10 * diagonal[0].abs().clamp(min=1e-10)):
            break  # the space that the vector reaches is exhausted
        beside.append(length)
        basis[i + 1] = image / length


def _extreme(
    loss: Tensor,
    parameters: Sequence[Tensor],
    steps: int,
    tolerance: float,
    seed: int,
    choose: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the eigenvalue at the place that `choose` gives, among some in ascending order."""
    value = torch.full((), torch.nan, dtype=torch.float64, device=parameters[0].device)
    start = _start(parameters, seed)
    for matrix, length in _lanczos(products(loss, parameters), start, steps):
        if not bool(matrix.isfinite().all()):
            return torch.full_like(value, torch.nan)
        values, vectors = torch.linalg.eigh(matrix)
        at = choose(values)
        value, residual = values[at], length * vectors[-1, at].abs()
        if bool(residual <= tolerance * value.abs()):
            break
    return value


@register("metrics", "hessian_spectral_norm", source="Lanczos on Hessian-vector products")
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
        steps: most Hessian-vector products. The estimate is a lower bound. As many float64 copies
            of all parameters are kept in memory.
        tolerance: the products end where ‖Hv − λv‖ is at most this share of |λ|, for the estimate λ
            and its unit vector v. Then an eigenvalue lies within that share of λ, and the error is
            of the order of its square, unless the first vector has almost nothing of the largest.
        seed: seed of the first vector.

    Returns:
        In ``[0, inf)``; NaN where a product is not finite.
    """
    return _extreme(
        loss, parameters, steps, tolerance, seed, lambda values: values.abs().argmax()
    ).abs()


@register("metrics", "hessian_max_eigenvalue", source="Lee et al. 2024 (Hare & Tortoise)")
def hessian_max_eigenvalue(
    loss: Tensor,
    parameters: Sequence[Tensor],
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Tensor:
    """Largest eigenvalue of the loss's Hessian: its sharpness.

    A negative eigenvalue of larger size is passed over. Arguments are those of
    `hessian_spectral_norm`; the value is NaN where a product is not finite.
    """
    return _extreme(loss, parameters, steps, tolerance, seed, lambda values: values.argmax())


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
    loss: Tensor, parameters: Sequence[Tensor], probes: int = 10, steps: int = 80, seed: int = 0
) -> Spectrum:
    """Density of the Hessian's eigenvalues; a run logs four numbers of it.

    Each probe is a random unit vector. Lanczos with full re-orthogonalisation turns H into a
    tridiagonal matrix, whose eigenvalues are the nodes; the squared first components of its
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
    nodes, weights = [], []
    for number in range(probes):
        *_, (matrix, _) = _lanczos(product, _start(parameters, seed + number), steps)
        values, vectors = torch.linalg.eigh(matrix)
        nodes.append(values)
        weights.append(vectors[0].square())
    all_nodes, all_weights = torch.cat(nodes), torch.cat(weights) / probes
    order = all_nodes.argsort()
    return Spectrum(all_nodes[order], all_weights[order])
