"""What every layer method must do, on SimBa's twin critics."""

import copy
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import rlplast
from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.install import installed_rules
from rlplast.core.method.method import implements
from rlplast.core.registry import rows
from rlplast.methods import recycling
from rlplast.supervised.resnet import ResNet18
from tests.methods.test_crelu import even_conv
from tests.methods.test_deep_fourier import q_network
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import assert_same
from tests.syncs import host_reads
from tests.test_every_kind import LAYERS

every_layer = pytest.mark.parametrize("layer", [info.name for info in rows("layers")])


def made(layer: str) -> rlplast.Network:
    torch.manual_seed(0)
    module, target = (Critic(5, 2, TrunkSpec("simba", 4, 2)) for _ in range(2))
    target.load_state_dict(module.state_dict())
    for each in (module, target):
        rlplast.replace_layers(each, layer, **LAYERS[layer])
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    return rlplast.Network("critic", module, optimizer, target.requires_grad_(False))


def update(network: rlplast.Network, number: int) -> None:
    network.optimizers[0].zero_grad()
    network.module(normal(8, 5, seed=number), normal(8, 2)).square().mean().backward()
    network.optimizers[0].step()


@every_layer
def test_followers_are_left_alone_and_nothing_is_drawn_from_global_streams(layer: str) -> None:
    torch.manual_seed(0)
    for _ in range(2):
        Critic(5, 2, TrunkSpec("simba", 4, 2))
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    network = made(layer)
    target = network.followers["target"].module
    start = copy.deepcopy(target.state_dict())
    assert_same(dict(network.module.state_dict()), dict(start))
    hooks = rlplast.Hooks([], network, "9 updates")
    for number in range(1, 4):
        update(network, number)
        hooks.step(updates=number)
    assert_same(dict(start), dict(target.state_dict()))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), str(np.random.get_state()))


@every_layer
def test_updates_do_not_wait_for_the_device(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "by_rows", lambda mask: False)  # as on a GPU
    network = made(layer)
    hooks = [r for r in installed_rules([network]) if implements(r.method, "plan")]
    update(network, 1)  # which makes the optimizer's state, whose Adam reads its own steps
    for number in range(1, 4):
        with host_reads() as found:
            network.module(normal(8, 5), normal(8, 2)).square().mean().backward()
            for hook in hooks:
                hook.tick(rlplast.Clock(updates=number), 0)
        assert found == []


# Layers that updates change, and a network that has them; others: tests/agents/test_compiled.py.
TICKING = {
    "dropconnect": "conv",
    "normalize_project": "conv",
    "scheduled_drop": "residual",
}


@pytest.mark.slow
@pytest.mark.parametrize("layer", TICKING)
def test_compiled_updates_do_what_eager_ones_do(layer: str) -> None:
    torch._dynamo.reset()
    install = partial(rlplast.replace_layers, method=layer, **LAYERS[layer])
    eager, compiled = (Trained(TICKING[layer], install=install) for _ in range(2))
    forward = torch.compile(compiled.module, backend="aot_eager", fullgraph=True)
    ticks = [rlplast.Hooks([], m.network, "99 updates").hooks[0].tick for m in (eager, compiled)]
    ticks[1] = torch.compile(ticks[1], backend="aot_eager", fullgraph=True)
    for update in range(1, 9):
        x, _ = eager.batch()
        assert_close(forward(x), eager.module(x), rtol=1e-4, atol=1e-5)
        for made, tick in zip((eager, compiled), ticks, strict=True):
            made.update()
            tick(rlplast.Clock(updates=update), 0)
    torch._dynamo.reset()
    assert_close(compiled.state(), eager.state(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["aid", "crelu", "stochastic_depth", "unit_features"])
def test_compiled_outputs_are_eager_ones(layer: str) -> None:
    torch._dynamo.reset()
    module, inputs = made(layer).module, (normal(6, 5), normal(6, 2))
    forward = torch.compile(copy.deepcopy(module), backend="aot_eager", fullgraph=True)
    assert_close(forward(*inputs), module(*inputs), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


class Function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.fc(x)))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.attn = nn.Linear(4, 6), nn.MultiheadAttention(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.fc(x))
        return self.attn(h, h, h)[0]


def shared() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))


def of(*hidden: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), *hidden, nn.Linear(4, 2))


def conv1d() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Conv1d(2, 1, 3))


def after(method: str, module: nn.Module | None = None) -> nn.Module:
    """A module, by default an MLP, in which layers of another method are already."""
    module = NETS["mlp"].module() if module is None else module
    rlplast.replace_layers(module, method)
    return module


PLAIN = ["activation", "aid", "crelu", "dropconnect", "dropout", "layer_norm", "scheduled_drop"]
NORMED = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))


def test_what_cannot_be_replaced_is_named_and_stays() -> None:
    mlp, conv, batch_norm = (NETS[net].module for net in ("mlp", "conv", "conv_batchnorm"))
    odd = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    for net, method, match, error in (
        *((nn.Sequential(nn.Linear(3, 2)), method, "hidden", NothingToEdit) for method in PLAIN),
        *((Function(), m, "fc .*tanh", ConfigError) for m in ("activation", "aid", "deep_fourier")),
        *((shared(), m, "0 .*relu", ConfigError) for m in ("activation", "deep_fourier")),
        *((after("aid"), m, "0 .*aid", ConfigError) for m in ("activation", "aid")),
        (after("activation", q_network()[0]), "activation", "conv1", ConfigError),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), "activation", "nonlinear", NothingToEdit),
        (conv(), "crelu", "4 has 3 outputs", ConfigError),
        (of(nn.GELU()), "crelu", "0 .*gelu", ConfigError),
        (of(nn.ReLU(), nn.LayerNorm(4)), "crelu", "0 .*norm 2", ConfigError),
        *((batch_norm(), m, "0 .*norm 1", ConfigError) for m in ("crelu", "deep_fourier")),
        (ResNet18(1, 3, 4), "deep_fourier", "layer1.0.conv1 .*layer1.0.bn1", ConfigError),
        (odd, "deep_fourier", "0 has 5 outputs", ConfigError),
        *((conv1d(), m, "0 .*Conv1d", ConfigError) for m in ("crelu", "layer_norm")),
        (conv1d(), "dropconnect", "2 .*Conv1d", ConfigError),
        *((after(m), m, "2 drops", ConfigError) for m in PLAIN if "drop" in m),
        *((Attending(), m, "attn", ConfigError) for m in ("dropout", "scheduled_drop")),
        (NORMED, "layer_norm", "norm", NothingToEdit),
        (after("layer_norm"), "layer_norm", "0 is normalised", ConfigError),
        (after("normalize_project"), "layer_norm", "0 is normalised", ConfigError),
        (nn.Sequential(nn.LayerNorm(3)), "rigl", "rigl", NothingToEdit),
        (after("rigl"), "rigl", "rigl: 0 ", ConfigError),
    ):
        before = copy.deepcopy(net)
        with pytest.raises(error, match=match):
            rlplast.replace_layers(net, method)
        assert str(net) == str(before), (method, match)
        assert_same(dict(net.state_dict()), dict(before.state_dict()))
    with pytest.raises(ConfigError, match="alpha"):
        rlplast.replace_layers(mlp(), "activation", kind="rational", alpha=0.1)
    with pytest.raises(NothingToEdit, match="'3'"):
        rlplast.replace_layers(mlp(), "dropout", layers=["4", "3"])


def test_methods_that_act_on_units_find_none_in_pairs_and_say_why() -> None:
    for method, params in (("crelu", {"width": "double"}), ("crelu", {}), ("deep_fourier", {})):
        net = even_conv()
        rlplast.replace_layers(net, method, **params)
        for other in ("lifecycle", "dropout", "layer_norm", "deep_fourier"):
            with pytest.raises(NothingToEdit, match=method):
                rlplast.replace_layers(net, other)
        network = rlplast.Network("net", net, torch.optim.Adam(net.parameters()))
        assert network.units().groups == ()
        with pytest.raises(NothingToEdit, match=method):
            row = {"method": "redo", "every": "2 updates"}
            rlplast.Hooks([row], network, "10 updates", probe=normal(4, 2, 4, 4))
