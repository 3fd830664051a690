"""Loss of trainability: how much worse a network fits new targets than at its start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rlplast.core.errors import ConfigError
from rlplast.core.mean_interval import student
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.record import WithWeights
from rlplast.core.registry import register
from rlplast.core.rng import torch_stream

__all__ = ["Start", "Trainability", "fit_errors", "tensors_with", "trainability"]

Start = Callable[[Block, int], Tensor]  # a Block's value where the fit of a target begins

FREQUENCY = 1e5  # of the targets: neighbours among the inputs have unrelated ones


@dataclass(frozen=True)
class Trainability:
    """Result of `trainability`.

    Attributes:
        lost: mean over targets of the error now minus the error from θ0; positive if
            trainability was lost.
        low: lower end of its 95% interval over targets.
        high: upper end.
        errors: the final mean squared error from the current weights, by target.
        initial: the final mean squared error from θ0, by target.
    """

    lost: float
    low: float
    high: float
    errors: tuple[float, ...]
    initial: tuple[float, ...]


@register(
    "metrics", "trainability", source="Lyle et al. 2023, loss of trainability on random targets"
)
def trainability(
    network: Network,
    outputs: Callable[[nn.Module], Tensor | None],
    *,
    targets: Annotated[int, Field(ge=2, le=1_000_000)] = 10,
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = 2000,
    lr: float | None = None,
    seed: int = 0,
) -> Trainability:
    """How much worse than from θ0 the network fits new random targets; positive if worse.

    A target is g(x) = a + sin(10⁵·f(x; ω)). The network's own initializer draws a new ω, and a is
    the mean output of the fitted network, output by output. Two copies of the network fit the
    target: one with the current weights, one with θ0. Each gets a new optimizer of the network's
    own kind and makes `steps` full updates on the same inputs. The final mean squared errors are
    compared, and the interval is Student's over targets.

    Outputs are in evaluation mode, so norm layers keep their running statistics. Nothing of the
    network changes: weights, gradients, optimizer, generators. In a run the inputs are the probe
    batch, with 5 targets and 200 steps at the config's learning rate. This is the costliest of the
    metrics, and it is measured only if a config names it.

    Args:
        network: the network, with its optimizer and θ0.
        outputs: function of a module of the same architecture that returns its outputs on the
            inputs, shape ``[samples, ...]``, such as ``lambda module: module(x)``.
        targets: number of targets; at least 2, for the interval.
        steps: updates of each fit.
        lr: learning rate; default: the current one of each parameter group.
        seed: seed of the draws of ω.

    Raises:
        ConfigError: if the network has no optimizer.
    """
    starts: list[Start] = [
        lambda block, number: block.view,
        lambda block, number: network.initial[block.name],
    ]
    errors = fit_errors(network, outputs, starts, targets, steps, lr, seed)
    interval = student([now - then for now, then in zip(*errors, strict=True)])
    return Trainability(*interval, *map(tuple, errors))


def fit_errors(
    network: Network,
    outputs: Callable[[nn.Module], Tensor | None],
    starts: Sequence[Start],
    targets: int,
    steps: int,
    lr: float | None = None,
    seed: int = 0,
) -> list[list[float]]:
    """Return the final mean squared errors of `trainability`'s fits, by start and target.

    `starts` are the weights of a copy, by Block and number of the target; the rest is as there.
    """
    if not network.optimizers:
        raise ConfigError(
            f"trainability: network {network.name!r} has no optimizer: make its Network with one"
        )
    errors: list[list[float]] = [[] for _ in starts]
    for number in range(targets):
        generator = torch_stream(seed, "trainability", number)
        drawn = tensors_with(network, lambda block, own=generator: network.fresh(block, own))
        with torch.no_grad():
            wave = torch.sin(FREQUENCY * _outputs(network, outputs, drawn).double())
        for start, found in zip(starts, errors, strict=True):
            own = tensors_with(network, lambda block, own=start, i=number: own(block, i))
            found.append(_fitted(network, outputs, own, wave, steps, lr))
    return errors


@torch.no_grad()
def tensors_with(network: Network, value: Callable[[Block], Tensor]) -> dict[str, Tensor]:
    """Return new parameters and buffers by name, with a value of each Block."""
    module = network.module
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    names = {id(tensor): name for name, tensor in tensors.items()}
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for block in network.blocks:
        name = names[id(getattr(block.module, block.spec.tensor))]
        block.like(copies[name]).copy_(value(block))
    return copies


def _outputs(
    network: Network, outputs: Callable[[nn.Module], Tensor | None], tensors: dict[str, Tensor]
) -> Tensor:
    result = outputs(WithWeights(network.module, tensors))
    if result is None:
        raise ConfigError(f"trainability: network {network.name!r} has no outputs")
    return result


def _fitted(
    network: Network,
    outputs: Callable[[nn.Module], Tensor | None],
    tensors: dict[str, Tensor],
    wave: Tensor,
    steps: int,
    lr: float | None,
) -> float:
    """Return the error after a fit, which moves these tensors."""
    copies = {}
    for name, parameter in network.module.named_parameters():
        copies[id(parameter)] = tensors[name].requires_grad_(parameter.requires_grad)
    optimizers = [_renewed(own, copies, lr) for own in network.optimizers]
    with torch.no_grad():
        offset = _outputs(network, outputs, tensors).mean(0, keepdim=True)
        target = (offset.double() + wave).to(offset)

    def error() -> Tensor:
        return F.mse_loss(_outputs(network, outputs, tensors), target)

    with torch.enable_grad():
        for _ in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            error().backward()
            for optimizer in optimizers:
                optimizer.step()
    with torch.no_grad():
        return float(error())


def _renewed(optimizer: torch.optim.Optimizer, copies: dict[int, Tensor], lr: float | None) -> Any:
    """Return an optimizer like another one, of other parameters and without state."""
    kind: Any = type(optimizer)
    base: Any = getattr(optimizer, "base", None)  # of one that wraps another
    if base is not None:
        return kind(_renewed(base, copies, lr))
    groups = [
        {**group, "params": [copies[id(p)] for p in group["params"] if id(p) in copies]}
        | ({} if lr is None else {"lr": lr})
        for group in optimizer.param_groups
    ]
    return kind([group for group in groups if group["params"]])
