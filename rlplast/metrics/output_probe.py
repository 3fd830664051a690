"""Metrics of outputs, measured in a run: kernels and gradients per sample, slopes, churn."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlplast.core.network.network import Network
from rlplast.core.network.record import WithWeights
from rlplast.core.registry import get
from rlplast.core.rng import derive_seed
from rlplast.metrics.outputs import NotedInputs, gradient_rows, input_jacobians
from rlplast.training.trainable import Trainable

__all__ = ["OF_CHURN", "OF_OUTPUTS", "measure_outputs", "weights_of"]

OF_KERNELS = ("ntk_effective_rank", "ntk_srank")
OF_CHURN = ("churn", "churn_size", "churn_argmax")  # against the weights of the time before
OF_OUTPUTS = (*OF_KERNELS, "gradient_covariance", "lipschitz_estimate", *OF_CHURN, "trainability")
SAMPLES = 32  # of the metrics that look at samples one by one
TARGETS, STEPS = 5, 200  # of trainability

Values = dict[str, Tensor | float]


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's parameters and buffers, by name."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def measure_outputs(
    trainable: Trainable,
    network: Network,
    batch: Any,
    names: Sequence[str],
    number: int,
    before: Mapping[str, Tensor] | None,
) -> Values:
    """Return the values of metrics of `OF_OUTPUTS` by name, of an ensemble by member.

    `number` is that of the probe stream, `before` weights and buffers of the time before.
    """
    values = Values()
    if "gradient_covariance" in names:
        rows = _rows(trainable, network, number, lambda one: trainable.loss(network.name, one))
        values["gradient_covariance"] = get("metrics", "gradient_covariance").target(rows)
    with torch.no_grad():
        now = trainable.outputs(network.name, batch)
    if now is None:
        return values
    asked = {name: get("metrics", name).target for name in names}
    churns = {name: metric for name, metric in asked.items() if name in OF_CHURN}
    if before is not None and churns:
        other = WithWeights(network.module, {n: t.to(now.device) for n, t in before.items()})
        with torch.no_grad():
            then = cast(Tensor, trainable.outputs(network.name, batch, other))
        choices = getattr(network.module, "choices", None)  # how many; others are no choices
        for name, metric in churns.items():
            only = name == "churn_argmax" and choices is not None
            pair = (now[:, :choices], then[:, :choices]) if only else (now, then)
            values[name] = metric(*pair)
    kernels = {name: metric for name, metric in asked.items() if name in OF_KERNELS}
    for member, columns in _members(network):
        if kernels:
            value = partial(_sum, trainable, network.name, columns)
            rows = _rows(trainable, network, number, value)
            values |= {name + member: metric(rows) for name, metric in kernels.items()}
        if "lipschitz_estimate" in asked:
            slopes = _slopes(trainable, network, number, columns)
            if slopes is not None:
                values[f"lipschitz_estimate{member}"] = asked["lipschitz_estimate"](slopes)
    if "trainability" in asked:
        result = asked["trainability"](
            network,
            lambda module: trainable.outputs(network.name, batch, module),
            targets=TARGETS,
            steps=STEPS,
            lr=network.optimizers[0].defaults["lr"],  # its schedule may be at its end
            seed=number,
        )
        values |= {"trainability": result.lost}
        values |= {"trainability/low": result.low, "trainability/high": result.high}
    return values


def _rows(
    trainable: Trainable, network: Network, number: int, value: Callable[[Any], Tensor]
) -> Tensor:
    """Return the gradients of a value of single samples, each a batch of its own."""
    parameters = [p for p in network.module.parameters() if p.requires_grad]
    singles = (trainable.sample(1, derive_seed(number, "sample", i)) for i in range(SAMPLES))
    return gradient_rows((value(one) for one in singles), parameters)


def _members(network: Network) -> list[tuple[str, slice]]:
    """Return the members of an ensemble, as names end, with their columns of the outputs."""
    members = dict.fromkeys(block.spec.member for block in network.trainable())
    return [
        ("", slice(None)) if member is None else (f"/[{member}]", slice(member, member + 1))
        for member in members
    ]


def _sum(trainable: Trainable, key: str, columns: slice, one: Any) -> Tensor:
    return cast(Tensor, trainable.outputs(key, one)).flatten(1)[:, columns].sum()


def _slopes(trainable: Trainable, network: Network, number: int, columns: slice) -> Tensor | None:
    """Return the input Jacobians of some samples; None of a network that reads indices."""
    noted = NotedInputs(network.module)
    some = trainable.outputs(network.name, trainable.sample(SAMPLES, number), noted)
    columns_seen = cast(Tensor, some).flatten(1)[:, columns]
    return input_jacobians(columns_seen, noted.inputs) if noted.inputs else None
