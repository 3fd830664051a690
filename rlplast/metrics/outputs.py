"""Metrics of a network's outputs as a function of its weights, and of its inputs."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register
from rlplast.metrics.ranks import at_least_float32, effective_rank, srank

__all__ = [
    "NotedInputs",
    "churn",
    "churn_argmax",
    "churn_size",
    "gradient_covariance",
    "gradient_rows",
    "input_jacobians",
    "lipschitz_estimate",
    "ntk_effective_rank",
    "ntk_srank",
]


def gradient_rows(values: Iterable[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return the gradient of each 0-d value, (values, entries of all parameters), on one device.

    Each value is made when its turn comes, so one graph is kept at a time.
    """
    rows = []
    for value in values:
        gradients = torch.autograd.grad(
            value, parameters, allow_unused=True, materialize_grads=True, retain_graph=True
        )
        dense = [g.to_dense() if g.is_sparse else g for g in gradients]
        rows.append(torch.cat([at_least_float32(g).flatten() for g in dense]))
    return torch.stack(rows)


def _gram(gradients: Tensor) -> Tensor:
    if gradients.ndim != 2:
        raise ConfigError(
            f"gradients of shape {list(gradients.shape)}: allowed is [samples, parameters]"
        )
    return at_least_float32(gradients @ gradients.mT).double()


@register("metrics", "ntk_effective_rank", source="exp-entropy of the empirical NTK's eigenvalues")
def ntk_effective_rank(gradients: Tensor) -> Tensor:
    """Effective rank of the empirical NTK: exponential of its eigenvalues' entropy.

    The neural tangent kernel (NTK) is N_ij = ⟨∇f(x_i), ∇f(x_j)⟩; `gradients` are these ∇f,
    ``[samples, parameters]``. In a run f is the sum of all outputs (Mohamadi et al. 2023), for each
    ensemble member by itself, of 32 samples. The value is 0 if all gradients are 0.

    Examples:
        >>> ntk_effective_rank(torch.eye(3)).item().__round__(6)
        3.0
    """
    return effective_rank(_gram(gradients))


@register("metrics", "ntk_srank", source="srank of the empirical NTK")
def ntk_srank(gradients: Tensor) -> Tensor:
    """Smallest number of eigenvalues of the empirical NTK that hold 99% of their sum.

    `gradients` are those of `ntk_effective_rank`; the value is 0 if all of them are 0.
    """
    return srank(_gram(gradients))


@register("metrics", "gradient_covariance", source="Lyle et al. 2023; mean off-diagonal cosine")
def gradient_covariance(gradients: Tensor) -> Tensor:
    """Mean cosine between the loss gradients of two samples.

    It is 1 if all samples pull the same way, 0 if their gradients, ``[samples, parameters]``, are
    orthogonal, and below 0 if they undo each other. Samples whose gradient is 0 are left out; it is
    NaN with fewer than two others. A run uses 32 samples.

    Examples:
        >>> gradient_covariance(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0]])).item()
        1.0
    """
    products = _gram(gradients)
    length = products.diagonal().sqrt()
    unit = torch.where(length > 0, 1 / length, 0)  # in the products alone: no copy of gradients
    count = (length > 0).sum()
    cosines = products * unit[:, None] * unit
    return (cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))


class NotedInputs(nn.Module):
    """A module that notes what it is called with, as leaves of the graph.

    Attributes:
        inputs: of the last call; without indices, which have no gradient.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.inputs: list[Tensor] = []

    def forward(self, *args: Tensor) -> Any:
        """Return what the module does; frames of bytes become float32."""
        leaves = [a if a.dtype in (torch.int64, torch.int32) else _leaf(a.detach()) for a in args]
        self.inputs = [leaf for leaf in leaves if leaf.requires_grad]
        return self.module(*leaves)


def _leaf(tensor: Tensor) -> Tensor:
    return at_least_float32(tensor).clone().requires_grad_()


def input_jacobians(outputs: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return ∂f/∂x of every sample, (samples, outputs, entries of all inputs).

    A sample's outputs, (samples, outputs), must depend on its own inputs alone, (samples, …) each.
    """
    rows = []
    for column in outputs.flatten(1).unbind(1):
        gradients = torch.autograd.grad(
            column.sum(), inputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([g.flatten(1) for g in gradients], dim=1))
    return torch.stack(rows, dim=1)


@register("metrics", "lipschitz_estimate", source="largest input Jacobian on a batch")
def lipschitz_estimate(jacobians: Tensor) -> Tensor:
    """Largest ‖∂f/∂x‖₂ on a batch: the steepest slope of the outputs in the inputs.

    x is the input of the module: bytes of frames, normalised images, or observations and actions;
    `jacobians` are ``[samples, outputs, inputs]``. Of a chain without norm layers the value is at
    most `lipschitz_bound`. A run uses 32 samples. A network that reads indices, such as a GPT, has
    no value.
    """
    wide = jacobians.double()
    return torch.linalg.eigvalsh(wide @ wide.mT).amax().clamp(min=0).sqrt()


@register("metrics", "churn", source="Tang et al. 2025; mean squared change of outputs")
def churn(now: Tensor, before: Tensor) -> Tensor:
    """Mean squared change of the outputs on one batch.

    A run compares with the previous measurement of metrics, so the first one has no value. The
    weights of the previous measurement are saved with the run.
    """
    return (now.double() - before.double()).square().mean()


@register("metrics", "churn_size", source="Tang et al. 2024; mean change of values")
def churn_size(now: Tensor, before: Tensor) -> Tensor:
    """Mean absolute change of the outputs on one batch; see `churn`."""
    return (now.double() - before.double()).abs().mean()


@register("metrics", "churn_argmax", source="Schaul et al. 2022, policy churn")
def churn_argmax(now: Tensor, before: Tensor) -> Tensor:
    """Share of samples whose largest output changed: greedy action, class or token.

    Outputs are ``[samples, choices]``; those of an actor are no choices. See `churn`.
    """
    return (now.argmax(1) != before.argmax(1)).double().mean()
