"""Head reset: which linear layers are the head, and that nothing else changes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.agents.sac_networks import Actor, TrunkSpec
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.stacked import StackedLinear
from tests.methods.nets import ConvNet, Dueling, Mlp, Untraceable, changed, randomise, snapshot

ROLES = ("weight", "bias")


def tensors(*layers: int) -> set[str]:
    return {f"{layer}.{role}" for layer in layers for role in ROLES}


@pytest.mark.parametrize("init", ["fresh", "stored"])
@pytest.mark.parametrize(
    ("make", "layers", "edited"),
    [
        (Mlp, None, tensors(4)),
        (Mlp, 1, tensors(4)),
        (Mlp, 2, tensors(2, 4)),
        (Mlp, 3, tensors(0, 2, 4)),
        (ConvNet, None, tensors(5, 7)),
        (ConvNet, 1, tensors(7)),
        (lambda: ConvNet(norm=True), None, tensors(7, 9)),
    ],
)
def test_head_is_the_last_layer_of_an_mlp_and_every_linear_of_a_conv_net(
    make: Callable[[], nn.Module], layers: int | None, edited: set[str], init: str
) -> None:
    model = randomise(make(), 1)
    start = snapshot(model)
    randomise(model, 2)
    before = snapshot(model)
    receipt = rlplast.head_reset(model, layers=layers, init=init, initial=start)
    assert changed(before, model) == edited
    assert receipt.entries_touched == sum(before[name].numel() for name in edited)
    returned = set(before) - changed(start, model)
    assert edited <= returned if init == "stored" else not edited & returned


OUTPUTS = {f"{layer}.{role}" for layer in ("value", "advantage") for role in ROLES}


def flagged() -> nn.Module:
    model = Untraceable()
    model.value.is_head = model.advantage.is_head = True  # type: ignore[assignment]
    return model


class DeclaredHead(nn.Linear):
    def block_specs(self) -> list[BlockSpec]:
        return [BlockSpec(role, role, "linear", fan_in=8, head=True) for role in ROLES]


def declared() -> nn.Module:
    model = Untraceable()
    model.value, model.advantage = DeclaredHead(8, 1), DeclaredHead(8, 3)
    return model


@pytest.mark.parametrize("make", [Dueling, flagged, declared])
def test_head_is_what_gives_the_outputs_wherever_it_is_registered(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    before = snapshot(model)
    rlplast.head_reset(model)
    assert changed(before, model) == OUTPUTS
    rlplast.head_reset(model, layers=2)  # the outputs count as one layer, the last
    assert changed(before, model) == set(before)


def test_head_of_what_is_neither_flagged_nor_known_is_the_layer_registered_last() -> None:
    model = Untraceable()
    before = snapshot(model)
    rlplast.head_reset(model)
    assert changed(before, model) == {"body.weight", "body.bias"}


def test_fresh_weights_follow_the_layers_law_and_differ_between_seeds() -> None:
    drawn = []
    for seed in (1, 2):
        model = randomise(Mlp(), 1, std=50)
        rlplast.head_reset(model, seed=seed)
        drawn.append(snapshot(model)["4.weight"])
    assert all(bool((weight.abs() <= 1 / math.sqrt(8)).all()) for weight in drawn)
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("layers", [1, 2])
def test_every_member_of_a_stacked_network_gets_a_head_of_its_own(layers: int) -> None:
    model = randomise(nn.Sequential(StackedLinear(2, 4, 6), nn.ReLU(), StackedLinear(2, 6, 3)), 1)
    before = snapshot(model)
    rlplast.head_reset(model, layers=layers)
    assert changed(before, model) == (tensors(2) if layers == 1 else tensors(0, 2))
    head = snapshot(model)["2.weight"]
    assert not torch.equal(head[0], head[1])
    assert not (head == before["2.weight"]).any()


def test_parts_of_a_packed_projection_count_as_one_layer() -> None:
    model = randomise(nn.ModuleDict({"first": nn.Linear(4, 4), "qkv": nn.Linear(4, 12)}), 1)
    before = snapshot(model)
    rlplast.head_reset(model, layers=1)
    assert changed(before, model) == {"qkv.weight", "qkv.bias"}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Mlp, {"layers": 4}, "layers = 4: model has 3 linear layers"),
        (Mlp, {"layers": 0}, "layers = 0"),
        (Mlp, {"init": "frech"}, "did you mean 'fresh'"),
        (Mlp, {"init": "stored"}, "initial="),
        (lambda: nn.Conv2d(2, 2, 2), {}, "finds no linear layer"),
        (ConvNet, {"scope": "dqn", "initial": {}}, "initial value of model"),
    ],
)
def test_bad_uses_are_refused(
    make: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rlplast.head_reset(make(), **options)


def test_heads_side_by_side_are_reset_together():
    actor = Actor(3, 2, TrunkSpec("mlp", 8, 2))
    before = snapshot(actor)
    rlplast.head_reset(actor, seed=1)
    assert changed(before, actor) == {f"{h}.{r}" for h in ("mean", "log_std") for r in ROLES}
