"""Head reset: which linear layers are the head, and that nothing else changes."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import nn

import rlplast
from rlplast.agents.sac_networks import Actor, TrunkSpec
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.stacked import StackedLinear
from tests.methods.nets import ConvNet, Dueling, Mlp, Untraceable, changed, randomise, snapshot

ROLES = ("weight", "bias")


def tensors(*layers: int | str) -> set[str]:
    return {f"{layer}.{role}" for layer in layers for role in ROLES}


def test_head_is_the_last_layer_of_an_mlp_and_every_linear_of_a_conv_net() -> None:
    def packed() -> nn.Module:
        layers = {"first": nn.Linear(4, 4), "qkv": nn.Linear(4, 12)}
        return nn.Sequential(OrderedDict(layers))

    actor = lambda: Actor(3, 2, TrunkSpec("mlp", 8, 2))  # noqa: E731
    cases: list[tuple[Callable[[], nn.Module], int | None, set[str]]] = [
        (Mlp, None, tensors(4)),
        (Mlp, 1, tensors(4)),
        (Mlp, 2, tensors(2, 4)),
        (Mlp, 3, tensors(0, 2, 4)),
        (ConvNet, None, tensors(5, 7)),
        (ConvNet, 1, tensors(7)),
        (lambda: ConvNet(norm=True), None, tensors(7, 9)),
        (packed, 1, tensors("qkv")),
        (actor, None, tensors("mean", "log_std")),
    ]
    for (make, layers, edited), init in product(cases, ("fresh", "stored")):
        model = randomise(make(), 1)
        start = snapshot(model)
        randomise(model, 2)
        before = snapshot(model)
        receipt = rlplast.head_reset(model, layers=layers, init=init, initial=start)
        assert changed(before, model) == edited
        assert receipt.entries_touched == sum(before[name].numel() for name in edited)
        returned = set(before) - changed(start, model)
        assert edited <= returned if init == "stored" else not edited & returned


def flagged() -> nn.Module:
    model = Untraceable()
    model.value.is_head = model.advantage.is_head = True
    return model


class DeclaredHead(nn.Linear):
    def block_specs(self) -> list[BlockSpec]:
        return [BlockSpec(role, role, "linear", fan_in=8, head=True) for role in ROLES]


def declared() -> nn.Module:
    model = Untraceable()
    model.value, model.advantage = DeclaredHead(8, 1), DeclaredHead(8, 3)
    return model


def test_head_is_what_gives_the_outputs_wherever_it_is_registered() -> None:
    for make in (Dueling, flagged, declared):
        model = make()
        before = snapshot(model)
        rlplast.head_reset(model)
        assert changed(before, model) == tensors("value", "advantage")
        rlplast.head_reset(model, layers=2)  # the outputs count as one layer, the last
        assert changed(before, model) == set(before)


def test_every_member_of_a_stack_gets_a_head_of_its_own() -> None:
    stack = nn.Sequential(StackedLinear(2, 4, 6), nn.ReLU(), StackedLinear(2, 6, 3))
    before = snapshot(randomise(stack, 1))
    rlplast.head_reset(stack)
    assert changed(before, stack) == tensors(2)
    head = snapshot(stack)["2.weight"]
    assert not torch.equal(head[0], head[1]) and not (head == before["2.weight"]).any()


def test_bad_uses_are_refused() -> None:
    for model, options, message in (
        (Mlp(), {"layers": 4}, "layers = 4"),
        (Mlp(), {"init": "stored"}, "initial="),
        (nn.Conv2d(2, 2, 2), {}, "no linear layer"),
        (ConvNet(), {"scope": "dqn", "initial": {}}, "model"),
    ):
        with pytest.raises(rlplast.ConfigError, match=message):
            rlplast.head_reset(model, **options)
