"""Soft Weight Rescaling walks along the forward pass, or refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.network.stacked import StackedLinear
from tests.methods.nets import Gpt, changed, normal, randomise, snapshot
from tests.naive.interventions import SwrLayer, swr_twin


class Traced(nn.Module):
    """Registered in another order than it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.trunk = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.trunk(x)).flatten(1))


class Untraceable(Traced):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.trunk(x)) if x.sum() > 0 else torch.relu(self.trunk(-x)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.trunk(x))
        return self.head(features), self.value(features)


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class Functional(Traced):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.relu(self.trunk(x)), self.head.weight, self.head.bias)


@pytest.mark.parametrize(
    ("module", "order"),
    [(Traced, None), (Traced, ["trunk", "head"]), (Untraceable, ["trunk", "head"])],
)
@torch.no_grad()
def test_order_is_the_one_of_the_forward_pass_not_of_registration(
    module: Callable[[], nn.Module], order: list[str] | None
) -> None:
    net = randomise(module(), 0).double()
    network = rlplast.Network("q", net, order=order)
    randomise(net, 1, std=2.0)
    obs = normal(32, 4)
    before = net(obs)
    rlplast.swr(network, coef=0.5)
    ratio = net(obs) / before
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-9, atol=0)


def tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def reused() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("module", "order", "message"),
    [
        (TwoHeads, None, "q branches: relu feeds head, value"),
        (lambda: Residual(nn.Linear(4, 4)), None, "q branches: add joins"),
        (reused, None, "q uses 0 twice"),
        (Untraceable, None, "could not be traced"),
        (Functional, None, r"q\.head\.weight has no place in the forward order"),
        (Traced, ["head"], r"q\.trunk\.weight has no place in the forward order"),
        (Traced, ["head", "bodie"], "names no module 'bodie'"),
        (tied, None, r"q\.0\.weight is tied to 2\.weight"),
        (Gpt, None, r"q\.wte\.weight is tied to lm_head\.weight"),
        (
            lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
            None,
            r"q\.q\.weight is one part of a packed layer.*rescaling q\.q\.weight, q\.k\.weight",
        ),
        (lambda: nn.Sequential(nn.Embedding(3, 2)), None, "finds no linear, conv or norm layer"),
    ],
)
def test_what_has_no_single_forward_order_is_refused_by_name(
    module: Callable[[], nn.Module], order: list[str] | None, message: str
) -> None:
    network = rlplast.Network("q", module(), order=order)
    before = snapshot(network.module)
    with pytest.raises(ConfigError, match=message):
        rlplast.swr(network, coef=0.5)
    assert not changed(before, network.module)


def test_a_target_edited_alike_follows_the_declared_order() -> None:
    net, target = randomise(Untraceable(), 0), randomise(Untraceable(), 0)
    network = rlplast.Network("q", net, followers={"target": target}, order=["trunk", "head"])
    for module in (net, target):
        randomise(module, 1, std=2.0)
    rlplast.swr(network, coef=0.5, follower_policy="same_edit")
    assert not changed(snapshot(net), target)


@pytest.mark.parametrize("rule", ["exact", "printed"])
def test_each_member_of_a_stacked_network_is_a_chain_of_its_own(rule: str) -> None:
    def stacked() -> nn.Sequential:
        return nn.Sequential(StackedLinear(2, 4, 6), nn.ReLU(), StackedLinear(2, 6, 3))

    module = randomise(stacked(), 0).double()
    network = rlplast.Network("critic", module)
    start = snapshot(module)
    randomise(module, 1, std=2.0)
    before = snapshot(module)
    rlplast.swr(network, coef=0.3, rule=rule)
    after = snapshot(module)
    for member in range(2):
        layers = [
            SwrLayer(
                "head", before[f"{i}.weight"][member].numpy(), before[f"{i}.bias"][member].numpy()
            )
            for i in (0, 2)
        ]
        anchors = [float(start[f"{i}.weight"][member].norm()) for i in (0, 2)]
        for i, layer in zip((0, 2), swr_twin(layers, anchors, 0.3, 0.3, rule)[0], strict=True):
            assert layer.weight is not None and layer.bias is not None
            np.testing.assert_allclose(after[f"{i}.weight"][member], layer.weight, rtol=1e-12)
            np.testing.assert_allclose(after[f"{i}.bias"][member], layer.bias, rtol=1e-12)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_layer_that_diverged_is_named_and_nothing_is_written(value: float) -> None:
    network = rlplast.Network("q", randomise(Traced(), 0))
    with torch.no_grad():
        network.module.get_parameter("trunk.weight")[0, 0] = value
    before = snapshot(network.module)
    with pytest.raises(BadWeights, match=r"q\.trunk\.weight"):
        rlplast.swr(network, coef=0.5)
    after = snapshot(network.module)
    assert all(torch.equal(after[n].nan_to_num(), before[n].nan_to_num()) for n in after)
