"""Metrics of a run: weights and features measured on a probe batch.

The batch comes from a stream of its own, gradients are taken aside, and nothing of the
training is touched, so measuring changes no result.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.network.network import Network
from rlplast.core.registry import get
from rlplast.core.training.trainable import Trainable
from rlplast.metrics.features import last_features

__all__ = ["check_names", "measure_run"]

OF_WEIGHTS = ("weight_norm", "dfi", "dfi_scaled", "stable_rank", "spectral_norm")
OF_CHANGE = ("weight_difference", "sfe", "sfe_normalized")  # against θ0
OF_TAPS = (
    "dormant_ratio",
    "active_fraction",
    "saturation",
    "saturation_percentile",
    "feature_norm",
)
OF_FEATURES = ("srank", "effective_rank")  # of the last hidden layer
OF_GRADIENTS = ("gradient_norm", "effective_lr")
OF_UNITS = ("awake_fraction",)  # of lifecycle layers, where a network has some
OF_PREDICTIONS = ("ece", "mca")  # evaluations report these
MATRIX_ROLES = ("weight", "embedding")


def check_names(names: Iterable[str]) -> None:
    """Check that every name is a metric that can be measured during a run.

    Raises:
        ConfigError: naming the nearest metric, or saying why one cannot be measured.
    """
    known = (*OF_WEIGHTS, *OF_CHANGE, *OF_TAPS, *OF_FEATURES, *OF_GRADIENTS, *OF_UNITS)
    for name in names:
        get("metrics", name)
        if name in OF_PREDICTIONS:
            raise ConfigError(
                f"metrics.names: {name!r} needs predictions on test data, not a probe of the "
                "weights: evaluations of `kind: supervised` report it, leave it out here"
            )
        if name not in known:
            raise ConfigError(f"metrics.names: {name!r} compares two models: use `rlplast measure`")


def measure_run(
    trainable: Trainable, names: Iterable[str], batch_size: int, number: int
) -> dict[str, float]:
    """Return ``metric/<name>/<network>[/<tensor>]`` values of everything that trains.

    Args:
        trainable: what trains.
        names: registry names of metrics.
        batch_size: samples in the probe batch.
        number: number of the probe stream.
    """
    names = list(names)
    batch = trainable.sample(batch_size, number)
    values: dict[str, float] = {}
    for key, network in trainable.networks.items():
        found = _weights(network, names) | _units(network, names)
        if batch is not None:
            taps = trainable.activations(key, batch)
            if taps:  # a network of one scalar has no hidden layers
                found |= _features(taps, names)
            if network.trainable() and any(name in OF_GRADIENTS for name in names):
                found |= _gradients(network, trainable.loss(key, batch), names)
        for name, value in found.items():
            metric, _, tensor = name.partition("/")
            values["/".join(["metric", metric, key, *([tensor] if tensor else [])])] = float(value)
    return values


@torch.no_grad()
def _weights(network: Network, names: list[str]) -> dict[str, Tensor | float]:
    values: dict[str, Tensor | float] = {}
    blocks = network.trainable()
    for name in names if blocks else ():  # a frozen network has no weights to follow
        metric = get("metrics", name).target
        if name in ("weight_norm", "weight_difference"):
            squares = []
            for block in blocks:
                reference = [] if name == "weight_norm" else [network.initial[block.name]]
                value = metric(block.view, *reference)
                values[f"{name}/{block.name}"] = value
                squares.append(value.double().square())
            values[name] = torch.stack(squares).sum().sqrt()
        elif name in (*OF_WEIGHTS, *OF_CHANGE):
            for block in blocks:
                if block.role in MATRIX_ROLES:
                    reference = [] if name in OF_WEIGHTS else [network.initial[block.name]]
                    values[f"{name}/{block.name}"] = metric(block.view, *reference)
    return values


@torch.no_grad()
def _units(network: Network, names: list[str]) -> dict[str, Tensor | float]:
    blocks = network.select(lambda b: b.kind == "lifecycle" and b.spec.tensor == "active")
    values: dict[str, Tensor | float] = {}
    for name in names:
        if name in OF_UNITS and blocks:
            metric = get("metrics", name).target
            values[name] = metric({b.layer: b.view for b in blocks})
            values |= {f"{name}/{b.layer}": metric({b.layer: b.view}) for b in blocks}
    return values


@torch.no_grad()
def _features(taps: Activations, names: list[str]) -> dict[str, Tensor | float]:
    values: dict[str, Tensor | float] = {}
    for name in names:
        metric = get("metrics", name).target
        if name in OF_TAPS:
            values[name] = metric(taps)
        elif name in OF_FEATURES:
            for slot, own in _by_slot(taps).items():
                values["/".join([name, *slot])] = metric(last_features(own))
    return values


def _by_slot(taps: Activations) -> dict[tuple[str, ...], dict[str, Tensor]]:
    """Split the activations of a stacked network by member: ``[0].fc1`` belongs to ``[0]``."""
    found: dict[tuple[str, ...], dict[str, Tensor]] = {}
    for name, tap in taps.items():
        slot = (name.partition(".")[0],) if name.startswith("[") else ()
        found.setdefault(slot, {})[name] = tap
    return found


def _gradients(network: Network, loss: Tensor, names: list[str]) -> dict[str, Tensor | float]:
    parameters = [p for p in network.module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = [(g, p) for g, p in zip(gradients, parameters, strict=True) if g is not None]
    values: dict[str, Tensor | float] = {}
    for name in names:
        if name == "gradient_norm":
            values[name] = get("metrics", name).target([g for g, _ in pairs])
        elif name == "effective_lr":
            with torch.no_grad():
                values[name] = get("metrics", name).target(*map(list, zip(*pairs, strict=True)))
    return values
