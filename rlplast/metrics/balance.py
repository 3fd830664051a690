"""Metrics of how the weights of successive layers fit together.

The layers are a chain, in forward order, without norm layers and branches. Where a conv's channels
are flattened for a linear layer, a channel is as many successive columns.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register
from rlplast.metrics.ranks import spectral_norm
from rlplast.metrics.weights import weight_norm

__all__ = ["balancedness", "lipschitz_bound", "pairwise_balance"]

_SWEEPS, _STILL = 1000, 1e-12  # of balancing; the change of a sweep that counts as none


@register("metrics", "lipschitz_bound", source="FIRE paper; Lifecycle paper (Yang), Sec. 4.3")
def lipschitz_bound(weights: Sequence[Tensor]) -> Tensor:
    """Product of the layers' spectral norms: a bound on the Lipschitz constant of a chain.

    Nonlinearities and poolings between the layers must have slopes of at most 1, as ReLU, tanh and
    poolings whose windows do not overlap. For a conv the norm of the matrix (C_out, C_in·kh·kw) is
    a bound times √(kh·kw), for every stride and padding.

    In a run, a network with branches or norm layers has the product along the path where it is
    largest (`rlplast.metrics.longest_path`). It stands for the lifecycle paper's product over
    layers, and is no bound: branches that are added may stretch more together, and norm layers and
    attention stretch too.

    Examples:
        >>> lipschitz_bound([2 * torch.eye(3), 0.5 * torch.ones(1, 3, 2, 2)]).item().__round__(3)
        6.928
    """
    if not weights:
        raise ConfigError("lipschitz_bound: there are no weights; allowed is a chain of layers")
    factors = [spectral_norm(w) * math.sqrt(math.prod(w.shape[2:])) for w in weights]
    return torch.stack(factors).prod()


@register("metrics", "pairwise_balance", source="SWR paper, Definition 2 and eq. 17")
def pairwise_balance(
    first: Tensor, second: Tensor, first_initial: Tensor, second_initial: Tensor
) -> Tensor:
    """Change of the ratio of two layers' norms since the start of training: |r − r₀|.

    r is the norm of the layer that was larger at initialisation, over the norm of the other one.
    The value is NaN if both norms are 0.
    """
    now = weight_norm(first), weight_norm(second)
    then = weight_norm(first_initial), weight_norm(second_initial)
    ordered = then[0] <= then[1]
    quotients = [torch.where(ordered, b / a, a / b) for a, b in (now, then)]
    return (quotients[0] - quotients[1]).abs()


@register("metrics", "balancedness", source="Saul 2023; SWR paper, Appendix C")
def balancedness(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    """Squared norm of all parameters over the smallest norm that computes the same function.

    Take ReLU between the layers. Multiply the incoming weights and the bias of a hidden unit by
    a > 0, and its outgoing weights by 1/a: no output changes. The smallest squared norm over all
    such a is found layer by layer. The best a of one unit is the fourth root of a ratio: the
    squared norm of its outgoing weights over that of its incoming weights and bias.

    Returns:
        In ``[1, inf)``; NaN if all parameters are 0. Its power −1/2 is the share in (0, 1] that
        Saul and SWR's code report; that code leaves biases out.

    Raises:
        ConfigError: if a layer does not read as many inputs as the one before it has outputs.
    """
    sizes = [None, *(len(w) for w in weights)]  # units before each layer
    squares = [_by_unit(w, units) for w, units in zip(weights, sizes, strict=False)]
    offsets = [
        torch.zeros(len(w), dtype=torch.float64, device=w.device) if b is None else _square(b)
        for w, b in zip(weights, biases, strict=True)
    ]

    def norm() -> float:
        return sum(float(part.sum()) for part in (*squares, *offsets))

    size = last = size_now = norm()
    for _ in range(_SWEEPS):
        for i in range(len(squares) - 1):
            read, reads = squares[i].sum(1) + offsets[i], squares[i + 1].sum(0)
            alive = (read > 0) & (reads > 0)  # else the smallest size is reached at a = 0 or ∞
            factor = torch.where(alive, (reads / read).sqrt(), 0)  # a²
            squares[i], offsets[i] = squares[i] * factor[:, None], offsets[i] * factor
            squares[i + 1] = squares[i + 1] * torch.where(alive, 1 / factor, 0)
        size_now = norm()
        if last - size_now <= _STILL * size_now:
            break
        last = size_now
    return torch.tensor(size / size_now if size_now else math.nan, dtype=torch.float64)


def _square(tensor: Tensor) -> Tensor:
    return tensor.double().square()


def _by_unit(weight: Tensor, units: int | None) -> Tensor:
    """Return the square of what a unit reads of one before it, for all pairs of both."""
    squares = _square(weight)
    squares = squares.flatten(2).sum(2) if weight.ndim > 2 else squares
    read = squares.shape[1]
    if units is None or read == units:
        return squares
    if weight.ndim > 2 or read % units:
        raise ConfigError(
            f"balancedness: a weight of shape {list(weight.shape)} after a layer of {units} units; "
            "allowed is a chain in forward order, without grouped convs"
        )
    return squares.unflatten(1, (units, -1)).sum(2)
