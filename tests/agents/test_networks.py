import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from rlplast.agents import networks
from rlplast.agents.networks import (
    ACTIVATIONS,
    ARCHITECTURES,
    Architecture,
    Init,
    Output,
    QNetwork,
    architecture,
)
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from tests.methods.nets import normal

SHAPES = {"nature": (4, 84, 84), "minatar": (4, 10, 10), "mlp": (6,), "mlp_small": (6,)}


def q_network(name: str, init: str = "xavier_uniform", seed: int = 0, actions: int = 6) -> QNetwork:
    scale = 1 / 255 if name == "nature" else 1.0
    network = QNetwork(ARCHITECTURES[name], SHAPES[name], actions, scale, init)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    Network("q", network, optimizer).initialise(torch_stream(seed, "init", "q"))
    return network


def observations(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if name == "nature":
        return torch.randint(256, (5, *SHAPES[name]), generator=generator, dtype=torch.uint8)
    return torch.randn(5, *SHAPES[name], generator=generator)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        (
            "nature",
            {"conv1": 32 * 4 * 64, "conv2": 64 * 32 * 16, "conv3": 64 * 64 * 9, "fc1": 3136 * 512},
        ),
        ("minatar", {"conv1": 16 * 4 * 9, "fc1": 1024 * 128}),
        ("mlp", {"fc1": 6 * 256, "fc2": 256 * 256}),
    ],
)
def test_layers_are_those_of_the_papers(name: str, layers: dict[str, int]):
    network = q_network(name)
    width = {"nature": 512, "minatar": 128, "mlp": 256}[name]
    found = {
        layer: network.get_submodule(layer).weight.numel() for layer in network.forward_order()
    }
    assert found == layers | {"head": width * 6}


def test_nature_computes_the_published_network():
    network, obs = q_network("nature"), observations("nature")
    weight = dict(network.named_parameters())
    x = obs.float() / 255
    for i, stride in enumerate((4, 2, 1), 1):
        x = functional.conv2d(x, weight[f"conv{i}.weight"], weight[f"conv{i}.bias"], stride).relu()
    x = functional.linear(x.flatten(1), weight["fc1.weight"], weight["fc1.bias"]).relu()
    expected = functional.linear(x, weight["head.weight"], weight["head.bias"])
    torch.testing.assert_close(network(obs), expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_taps_are_what_hooks_on_the_layers_see(name: str):
    network, obs = q_network(name), observations(name)
    seen: dict[str, torch.Tensor] = {}
    for layer in network.forward_order():
        # The activation may work in place, hence a copy.
        network.get_submodule(layer).register_forward_hook(
            lambda module, given, out, layer=layer: seen.update({layer: out.clone()})
        )
    q, taps = network.forward_activations(obs)
    assert list(seen) == network.forward_order() == [*taps, "head"]
    assert set(seen) == {n for n, module in network.named_modules() if not [*module.children()]}
    for layer, tap in taps.items():
        assert torch.equal(tap, seen[layer].relu())
    assert torch.equal(q, seen["head"])
    assert torch.equal(q, network(obs))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_xavier_uniform_fills_its_bounds_and_biases_are_zero(name: str):
    network = q_network(name)
    for layer in network.forward_order():
        module = network.get_submodule(layer)
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(module.weight)
        bound = math.sqrt(6 / (fan_in + fan_out))
        weight = module.weight.detach()
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.97 * bound
        assert abs(weight.mean()) < 4 * bound / math.sqrt(3 * weight.numel())
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.06)
        assert not module.bias.any()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_torch_law_fills_torchs_own_bounds(name: str):
    network = q_network(name, init="torch")
    for layer in network.forward_order():
        module = network.get_submodule(layer)
        fan_in, _ = nn.init._calculate_fan_in_and_fan_out(module.weight)
        bound = 1 / math.sqrt(fan_in)
        assert 0.97 * bound < module.weight.abs().max() <= bound
        assert 0 < module.bias.abs().max() <= bound


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_orthogonal_law_has_singular_values_of_its_gain_and_zero_biases(name: str):
    network = q_network(name, init="orthogonal")
    for layer in network.forward_order():
        module = network.get_submodule(layer)
        values = torch.linalg.svdvals(module.weight.detach().flatten(1).double())
        gain = 1.0 if layer == "head" else math.sqrt(2)
        torch.testing.assert_close(values, torch.full_like(values, gain), atol=1e-5, rtol=0)
        assert not module.bias.any()


@pytest.mark.parametrize("init", get_args(Init))
def test_init_repeats_with_its_seed_and_differs_with_another(init: str):
    one, two, other = (q_network("mlp", init, seed) for seed in (0, 0, 1))
    pairs = zip(one.parameters(), two.parameters(), other.parameters(), strict=True)
    for mine, same, different in pairs:
        assert torch.equal(mine, same)
        assert torch.equal(mine, different) == (init != "torch" and mine.ndim == 1)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((4, 84, 84), "nature"), ((4, 10, 10), "minatar"), ((7, 10, 10), "minatar"), ((4,), "mlp")],
)
def test_auto_picks_by_the_shape_of_observations(shape: tuple[int, ...], name: str):
    assert architecture("auto", shape) == ARCHITECTURES[name]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("output", get_args(Output))
def test_widths_activation_and_output_are_those_of_the_config(activation: str, output: str):
    arch = Architecture(hidden=(7, 5, 3), activation=activation, output=output)
    network, obs = QNetwork(arch, (4,), 6), normal(9, 4).float()
    plain, x, taps = dict(network.named_parameters()), obs, {}
    formula = {
        "relu": lambda x: x.clamp(min=0),
        "leaky_relu": lambda x: torch.maximum(x, 0.01 * x),
        "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "silu": lambda x: x / (1 + (-x).exp()),
        "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    }[activation]
    for layer in ("fc1", "fc2", "fc3"):
        x = taps[layer] = formula(x @ plain[f"{layer}.weight"].T + plain[f"{layer}.bias"])
    values = x @ plain["head.weight"].T + plain["head.bias"]
    if output == "softmax":
        values = values.exp() / values.exp().sum(1, keepdim=True)
    found, activations = network.forward_activations(obs)
    torch.testing.assert_close(found, values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(activations, taps, atol=1e-6, rtol=1e-5)
    assert [spec.layer for spec in network.unit_specs()] == list(taps)


def test_misfits_are_refused():
    with pytest.raises(ConfigError, match=r"'minatar' needs image observations.*allowed is mlp"):
        architecture("minatar", (4,))
    with pytest.raises(ConfigError, match=r"agent\.init = 'xavir'"):
        QNetwork(ARCHITECTURES["mlp"], (4,), 2, init="xavir")


def test_flat_network_takes_images_too():
    network = QNetwork(ARCHITECTURES["mlp"], (4, 10, 10), 3)
    assert network(torch.zeros(2, 4, 10, 10)).shape == (2, 3)


def test_bytes_interleaved_as_words_equal_their_transposition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    obs = torch.randint(0, 256, (3, 4, 6, 8), dtype=torch.uint8, generator=generator)
    plain = networks.channels_last(obs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    words = networks.channels_last(obs)
    assert torch.equal(words, plain) and torch.equal(plain, obs)
    assert words.is_contiguous(memory_format=torch.channels_last)
