"""Whether a step along the gradient pays: how strong the gradient is, and how reliable."""

from typing import Any

import torch
from torch import Tensor

from rlplast.core.network.network import Network
from rlplast.core.registry import get, register
from rlplast.core.rng import derive_seed
from rlplast.metrics.outputs import gradient_rows
from rlplast.training.trainable import Trainable

__all__ = ["measure_readiness", "optimization_readiness"]

BATCHES, BATCH_SIZE = 128, 4  # Appendix C.1 of the paper


@register("metrics", "optimization_readiness", source="Wang et al. 2026, arXiv 2605.09044")
def optimization_readiness(loss: Tensor, norm: Tensor, batch_norms: Tensor) -> Tensor:
    """Strength of the loss's gradient times its reliability, ‖g‖⁴ / (L · E‖ĝ‖²).

    The strength is ‖g‖² / L. The reliability is ‖g‖² / E‖ĝ‖², the share of g in a gradient ĝ of a
    small batch. Where the loss is β-smooth, the best step of SGD lowers it by at least a quarter
    of this value over β, as a share of L. The state of the optimizer plays no part.

    Args:
        loss: L, the mean loss of the data, 0-d.
        norm: ‖g‖, of the gradient of L, 0-d.
        batch_norms: ‖ĝ‖ of small batches drawn from the same data, shape ``[batches]``.

    Returns:
        In ``[0, inf)``; 0 if the loss or all gradients of batches are 0, NaN for a loss below 0.

    Examples:
        >>> optimization_readiness(*map(torch.tensor, (2.0, 1.0, [1.0, 3.0]))).item()
        0.1
    """
    loss, square = loss.double(), norm.double().square()
    below = loss * batch_norms.double().square().mean()
    value = torch.where(below == 0, 0 * square, square.square() / below)
    return torch.where(loss < 0, torch.nan, value)


def measure_readiness(
    trainable: Trainable, network: Network, batch: Any, number: int
) -> dict[str, Tensor]:
    """Return a network's `optimization_readiness`, by name; the probe batch is all the data."""
    parameters = [p for p in network.module.parameters() if p.requires_grad]

    def norm_of(loss: Tensor) -> Tensor:
        return torch.linalg.vector_norm(gradient_rows([loss], parameters).double())

    seeds = (derive_seed(number, "batch", i) for i in range(BATCHES))
    small = (trainable.sample(BATCH_SIZE, seed) for seed in seeds)
    norms = torch.stack([norm_of(trainable.loss(network.name, one)) for one in small])
    loss = trainable.loss(network.name, batch)
    metric = get("metrics", "optimization_readiness").target
    return {"optimization_readiness": metric(loss.detach(), norm_of(loss), norms)}
