"""What every layer method must do, on SimBa's twin critics."""

import copy
import random

import numpy as np
import pytest
import torch

import rlplast
from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.clock import Clock
from rlplast.core.method.inner import inside_updates
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from rlplast.methods import recycling
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import assert_same
from tests.syncs import host_reads
from tests.test_every_kind import LAYERS

every_layer = pytest.mark.parametrize("layer", [info.name for info in rows("layers")])


def made(layer: str) -> Network:
    torch.manual_seed(0)
    module, target = (Critic(5, 2, TrunkSpec("simba", 4, 2)) for _ in range(2))
    target.load_state_dict(module.state_dict())
    for each in (module, target):
        rlplast.replace_layers(each, layer, **LAYERS[layer])
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    return Network("critic", module, optimizer, target.requires_grad_(False))


def update(network: Network, number: int) -> None:
    network.optimizers[0].zero_grad()
    network.module(normal(8, 5, seed=number), normal(8, 2)).square().mean().backward()
    network.optimizers[0].step()


@every_layer
def test_followers_get_the_same_modules_and_are_left_alone(layer: str) -> None:
    network = made(layer)
    target = network.followers["target"].module
    start = copy.deepcopy(target.state_dict())
    assert_same(dict(network.module.state_dict()), dict(start))
    hooks = rlplast.Hooks([], network, "9 updates")
    for number in range(1, 4):
        update(network, number)
        hooks.step(updates=number)
    assert_same(dict(start), dict(target.state_dict()))


@every_layer
def test_nothing_is_drawn_from_global_streams(layer: str) -> None:
    module = Critic(5, 2, TrunkSpec("simba", 4, 2))
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    rlplast.replace_layers(module, layer, **LAYERS[layer])
    network = Network("critic", module, torch.optim.Adam(module.parameters()))
    hooks = rlplast.Hooks([], network, "9 updates")
    for number in range(1, 4):
        update(network, number)
        hooks.step(updates=number)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == str(np.random.get_state())


@every_layer
def test_updates_do_not_wait_for_the_device(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "by_rows", lambda mask: False)  # as on a GPU
    network = made(layer)
    hooks = inside_updates([network])
    update(network, 1)  # which makes the optimizer's state, whose Adam reads its own steps
    for number in range(1, 4):
        with host_reads() as found:
            network.module(normal(8, 5), normal(8, 2)).square().mean().backward()
            for hook in hooks:
                hook.after_update(Clock(updates=number), 0)
        assert found == []


@pytest.mark.slow
@every_layer
def test_compiled_outputs_are_eager_ones(layer: str) -> None:
    torch._dynamo.reset()
    module, inputs = made(layer).module, (normal(6, 5), normal(6, 2))
    forward = torch.compile(copy.deepcopy(module), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(forward(*inputs), module(*inputs), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_compiled_updates_draw_as_eager_ones(net: str) -> None:
    drawing = ["dropout", "scheduled_drop", "dropconnect"]
    for layer in [*drawing, "aid"] if net in ("mlp", "conv", "conv_batchnorm") else drawing:
        torch._dynamo.reset()
        eager, compiled = (
            Trained(net, install=lambda m: rlplast.replace_layers(m, layer, **LAYERS[layer]))  # noqa: B023
            for _ in range(2)
        )
        forward = torch.compile(compiled.module, backend="aot_eager", fullgraph=True)
        inside = rlplast.Hooks([], compiled.network, "99 updates").hooks[0].after_update
        tick = torch.compile(inside, backend="aot_eager", fullgraph=True)
        hooks = rlplast.Hooks([], eager.network, "99 updates")
        for update in range(1, 4):
            x, _ = eager.batch()
            torch.testing.assert_close(forward(x), eager.module(x), rtol=1e-5, atol=1e-6, msg=layer)
            hooks.step(updates=update)
            tick(Clock(updates=1), 0)
    torch._dynamo.reset()
