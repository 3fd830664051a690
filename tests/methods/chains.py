"""Chains of layers for SWR, in float64, and what its twin has to know of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

import rlplast
from tests.methods.nets import ConvNet, Mlp, normal, randomise
from tests.naive.interventions import SwrLayer

TINY = 1e-30  # float64 and this ε make norm layers invariant to the scale of their input

# Chains on inputs (batch, 4) or (batch, 2, 6, 6).
NETS: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": Mlp,
    "mlp without biases": lambda: Mlp(bias=False),
    "one linear": lambda: nn.Sequential(nn.Linear(4, 3)),
    "conv": ConvNet,
    "pooled conv": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
}
NORMED: dict[str, Callable[[], nn.Sequential]] = {
    "batch norm": lambda: ConvNet(norm=True),
    "layer norm": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    ),
    "two layer norms": lambda: nn.Sequential(
        nn.Linear(4, 8),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.LayerNorm(6, bias=False),
        nn.Linear(6, 3),
    ),
    "norm without parameters": lambda: nn.Sequential(
        nn.Linear(4, 8),
        nn.Linear(8, 8),
        nn.LayerNorm(8, elementwise_affine=False),
        nn.ReLU(),
        nn.Linear(8, 3),
    ),
    "norm first": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 3)),
    "norm last": lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3), nn.LayerNorm(3)),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 4),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "rms norm": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.RMSNorm(8, eps=TINY), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)
    ),
}
ALL = NETS | NORMED


def kind_of(layer: nn.Module) -> str | None:
    if isinstance(layer, nn.Linear):
        return "head"
    if isinstance(layer, nn.modules.conv._ConvNd):
        return "conv"
    return "norm" if "Norm" in type(layer).__name__ else None


def layers_of(net: nn.Module) -> list[SwrLayer]:
    def numpy(tensor: Any) -> np.ndarray | None:
        return None if tensor is None else tensor.detach().double().numpy().copy()

    layers = [(kind_of(layer), layer) for layer in net.children()]
    return [
        SwrLayer(kind, numpy(layer.weight), numpy(getattr(layer, "bias", None)))
        for kind, layer in layers
        if kind is not None
    ]


def norms_of(layers: list[SwrLayer]) -> list[float]:
    return [
        0.0 if layer.weight is None else float(np.linalg.norm(layer.weight)) for layer in layers
    ]


def make(net: Callable[[], nn.Sequential], seed: int = 0, growth: float = 2.0) -> rlplast.Network:
    """A float64 network drawn once as θ0 and again, larger, as what training left."""
    module = randomise(net(), seed).double()
    for layer in module.children():
        if hasattr(layer, "eps"):
            setattr(layer, "eps", TINY)  # noqa: B010 - no such attribute on a plain Module
    network = rlplast.Network("q", module)
    randomise(module, seed + 1, std=growth)
    return network


def anchors_of(network: rlplast.Network) -> list[float]:
    """The norms at θ0 of the layers of `layers_of`; 0 of a norm without parameters."""
    weights = (network.initial[b.name] for b in network.blocks if b.role in ("weight", "scale"))
    norms = (float(weight.norm()) for weight in weights)
    return [0.0 if layer.weight is None else next(norms) for layer in layers_of(network.module)]


def inputs_for(network: rlplast.Network, samples: int = 64) -> Tensor:
    first = next(m for m in network.module.children() if kind_of(m))
    shape = (2, 6, 6) if isinstance(first, nn.Conv2d) else (4,)
    return normal(samples, *shape, seed=9)


def assert_twin(net: nn.Module, twin: list[SwrLayer], rtol: float = 1e-12) -> None:
    for ours, theirs in zip(layers_of(net), twin, strict=True):
        for mine, expected in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            assert (mine is None) == (expected is None)
            if mine is not None and expected is not None:
                np.testing.assert_allclose(mine, expected, rtol=rtol)
