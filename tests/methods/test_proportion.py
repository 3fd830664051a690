"""What scales a chain keeps its outputs in proportion, or refuses, whatever lies between layers."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.cases import about
from tests.methods.nets import changed, normal, randomise, snapshot


class Between(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(6, 3), nn.Linear(4, 6)  # in no order
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x / 2 - 0.1)))


def chain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3))


def replaced(layer: str, **params: Any) -> nn.Module:
    module = chain(nn.ReLU())
    rlplast.replace_layers(module, layer, **params)
    return module


KEPT: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: chain(nn.ReLU()),
    "leaky": lambda: chain(nn.LeakyReLU(), nn.Dropout(0.5)),
    "prelu": lambda: chain(nn.PReLU()),
    "prelu per unit": lambda: replaced("activation", kind="prelu"),
    "unit features": lambda: replaced("unit_features"),
    "norm without a scale before tanh": lambda: chain(
        nn.LayerNorm(6, elementwise_affine=False, eps=1e-30), nn.Tanh()
    ),
    "norm that a layer brings along": lambda: replaced("layer_norm", eps=1e-30),
    "one without a scale": lambda: replaced("layer_norm", eps=1e-30, affine=False),
    "scaled": lambda: Between(lambda h: torch.relu(h) / 3),
}
MIXED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tanh": (lambda: chain(nn.Tanh()), "tanh"),
    "gelu": (lambda: Between(nn.functional.gelu), "gelu"),
    "sigmoid at the end": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), r"q\.1"),
    "softmax at the end": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), r"q\.1"),
    "scale of a norm before tanh": (lambda: chain(nn.LayerNorm(6), nn.Tanh()), "tanh"),
    "added number": (lambda: Between(lambda h: torch.relu(h + 1)), "add"),
    "square": (lambda: Between(lambda h: h * h), "mul"),
    "unknown layer": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2)
        ),
        r"q\.3",
    ),
}


def grown(module: nn.Module) -> rlplast.Network:
    network = rlplast.Network("q", randomise(module, 0).double().eval())
    randomise(module, 1, std=2.0)
    return network


METHODS: dict[str, dict[str, Any]] = {"swr": {"coef": 0.5}, "scale_weights": {"factor": 0.7}}


@torch.no_grad()
def test_what_keeps_scale_keeps_outputs_in_proportion() -> None:
    for kind, method in product(KEPT, METHODS):
        network, x = grown(KEPT[kind]()), normal(32, 4)
        before, old = network.module(x), snapshot(network.module)
        rlplast.apply(method, network, **METHODS[method])
        ratio = network.module(x) / before
        with about(kind, method):
            torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-9, atol=0)
            assert len(changed(old, network.module)) >= 4


@torch.no_grad()
@pytest.mark.parametrize("kind", MIXED)
def test_what_does_not_is_refused_by_name_or_measured(kind: str) -> None:
    make, name = MIXED[kind]
    network, x = grown(make()), normal(32, 4)
    old = snapshot(network.module)
    for method in METHODS:
        with pytest.raises(rlplast.ConfigError, match=name):
            rlplast.apply(method, network, **METHODS[method])
    assert not changed(old, network.module)
    before = network.module(x)
    receipt = rlplast.swr(network, coef=0.5, approximate=True, inputs=x)
    after = network.module(x)
    fitted = before * (before * after).sum() / before.square().sum()
    expected = float((after - fitted).norm() / fitted.norm())
    assert receipt.deviation == pytest.approx(expected, rel=1e-9) and expected > 1e-4


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_frozen_layer_in_front_of_those_scaled_is_no_obstacle(method: str) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    randomise(module, 0).double()[0].requires_grad_(False)
    weights = [p for p in module.parameters() if p.requires_grad]
    network = rlplast.Network("q", module, torch.optim.SGD(weights, lr=0.1))
    randomise(module, 1, std=2.0)
    x = normal(32, 4)
    before, old = module(x), snapshot(module)
    rlplast.apply(method, network, **METHODS[method])
    ratio = module(x) / before
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-9, atol=0)
    assert changed(old, module) == {"2.weight", "2.bias", "4.weight", "4.bias"}


def test_a_frozen_bias_that_cannot_follow_is_refused_by_name() -> None:
    for frozen, method in product(("2.bias", "4.bias"), METHODS):
        module = chain(nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
        module.get_parameter(frozen).requires_grad_(False)
        weights = [p for p in module.parameters() if p.requires_grad]
        network = rlplast.Network("q", module, torch.optim.SGD(weights, lr=0.1))
        with pytest.raises(rlplast.ConfigError, match=rf"q\.{frozen} "):
            rlplast.apply(method, network)


def test_the_deviation_of_zero_outputs_is_a_number() -> None:
    for weight, x in ((0.0, 1.0), (2.0, 0.0), (-1.0, 1.0), (2.0, 1.0)):
        layer = nn.Linear(2, 3, bias=False)
        network = rlplast.Network("q", nn.Sequential(layer, nn.ReLU()))
        nn.init.constant_(layer.weight, weight)
        receipt = rlplast.swr(network, coef=0.5, approximate=True, inputs=torch.full((4, 2), x))
        assert receipt.row()["deviation"] == pytest.approx(0, abs=1e-6)
