import itertools
import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from rlplast.agents import networks
from rlplast.agents.dqn_config import DQNAgentConfig
from rlplast.agents.networks import (
    ACTIVATIONS,
    ARCHITECTURES,
    Architecture,
    Output,
    QNetwork,
    architecture_of,
)
from rlplast.agents.ppo_config import PPOAgentConfig
from rlplast.agents.ppo_networks import PolicyNetwork, ValueNetwork, policy_architecture
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from tests.methods.nets import normal
from tests.models import recorded

SHAPES = {"nature": (4, 84, 84), "minatar": (4, 10, 10), "mlp": (6,), "mlp_small": (6,)}


def q_network(name: str, init: str = "xavier_uniform", seed: int = 0) -> QNetwork:
    scale = 1 / 255 if name == "nature" else 1.0
    network = QNetwork(ARCHITECTURES[name], SHAPES[name], 6, scale, init)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    Network("q", network, optimizer).initialise(torch_stream(seed, "init", "q"))
    return network


def test_nature_computes_the_published_network():
    network, generator = q_network("nature"), torch.Generator().manual_seed(1)
    obs = torch.randint(256, (5, *SHAPES["nature"]), generator=generator, dtype=torch.uint8)
    weight = dict(network.named_parameters())
    sizes = [weight[f"{name}.weight"].numel() for name in network.forward_order()]
    assert sizes == [32 * 4 * 64, 64 * 32 * 16, 64 * 64 * 9, 3136 * 512, 512 * 6]
    x, expected = obs.float() / 255, {}
    for i, stride in enumerate((4, 2, 1), 1):
        x = functional.conv2d(x, weight[f"conv{i}.weight"], weight[f"conv{i}.bias"], stride).relu()
        expected[f"conv{i}"] = x
    x = functional.linear(x.flatten(1), weight["fc1.weight"], weight["fc1.bias"]).relu()
    q = functional.linear(x, weight["head.weight"], weight["head.bias"])
    torch.testing.assert_close(recorded(network, obs), (q, expected | {"fc1": x}))


@pytest.mark.parametrize("name", ["minatar", "mlp"])
def test_initial_weights_follow_their_law(name: str):
    for init in ("xavier_uniform", "torch", "orthogonal"):
        network, other = (q_network(name, init, seed) for seed in (0, 1))
        for layer in network.forward_order():
            module = network.get_submodule(layer)
            weight, bias = module.weight.detach(), module.bias.detach()
            assert not torch.equal(weight, other.get_submodule(layer).weight)
            fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(weight)
            if init == "orthogonal":
                values = torch.linalg.svdvals(weight.flatten(1).double())
                gain = 1.0 if layer == "head" else math.sqrt(2)
                torch.testing.assert_close(values, torch.full_like(values, gain), atol=1e-5, rtol=0)
                assert not bias.any()
                continue
            square = 6 / (fan_in + fan_out) if init == "xavier_uniform" else 1 / fan_in
            bound = math.sqrt(square)
            assert 0.97 * bound < weight.abs().max() <= bound
            assert abs(weight.mean()) < 4 * bound / math.sqrt(3 * weight.numel())
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.06)
            assert bias.any() == (init == "torch") and bias.abs().max() <= bound


def test_auto_picks_by_the_shape_of_observations():
    for shape, name in (
        ((4, 84, 84), "nature"),
        ((4, 10, 10), "minatar"),
        ((7, 10, 10), "minatar"),
        ((4,), "mlp"),
    ):
        assert architecture_of(DQNAgentConfig(), shape) == ARCHITECTURES[name]
    with pytest.raises(ConfigError, match="image observations"):
        architecture_of(DQNAgentConfig(network="minatar"), (4,))
    flat = QNetwork(ARCHITECTURES["mlp"], (4, 10, 10), 3)  # takes images too
    assert flat(torch.zeros(2, 4, 10, 10)).shape == (2, 3)


def test_widths_activation_and_output_are_those_of_the_config():
    formulas = {
        "relu": lambda x: x.clamp(min=0),
        "leaky_relu": lambda x: torch.maximum(x, 0.01 * x),
        "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "silu": lambda x: x / (1 + (-x).exp()),
        "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    }
    assert formulas.keys() == {*ACTIVATIONS}
    for (activation, formula), output in itertools.product(formulas.items(), get_args(Output)):
        arch = Architecture(hidden=(7, 5, 3), activation=activation, output=output)
        network, obs = QNetwork(arch, (4,), 6), normal(9, 4).float()
        plain, x, taps = dict(network.named_parameters()), obs, {}
        for layer in ("fc1", "fc2", "fc3"):
            x = taps[layer] = formula(x @ plain[f"{layer}.weight"].T + plain[f"{layer}.bias"])
        values = x @ plain["head.weight"].T + plain["head.bias"]
        if output == "softmax":
            values = values.exp() / values.exp().sum(1, keepdim=True)
        found, activations = recorded(network, obs)
        torch.testing.assert_close(found, values, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(activations, taps, atol=1e-6, rtol=1e-5)
        assert [spec.layer for spec in network.unit_specs()] == list(taps)


def test_bytes_interleaved_as_words_equal_their_transposition(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    obs = torch.randint(0, 256, (3, 4, 6, 8), dtype=torch.uint8, generator=generator)
    plain = networks.channels_last(obs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    words = networks.channels_last(obs)
    assert torch.equal(words, plain) and torch.equal(plain, obs)
    assert words.is_contiguous(memory_format=torch.channels_last)


def test_networks_of_pictures_give_logits_and_a_value():
    for own, usual in (({}, "relu"), ({"activation": "tanh"}, "tanh")):
        arch = policy_architecture(PPOAgentConfig(**own), (4, 10, 10))
        assert (arch.convs, arch.activation) == (ARCHITECTURES["minatar"].convs, usual)
    pictures = torch.randint(2, (5, 4, 10, 10), dtype=torch.uint8)
    policy = PolicyNetwork(arch, (4, 10, 10), 6)
    assert policy(pictures).shape == (5, 6) and policy.log_std is None
    assert ValueNetwork(arch, (4, 10, 10))(pictures).shape == (5, 1)


def test_log_sigma_is_a_block_of_its_own_whose_fresh_value_is_the_first():
    arch = policy_architecture(PPOAgentConfig(hidden=[8]), (4,))
    policy = PolicyNetwork(arch, (4,), 3, log_std=-1.5)
    network = Network("actor", policy)
    network.initialise(torch.Generator().manual_seed(0))
    (block,) = (b for b in network.blocks if b.name == "log_std")
    assert block.trainable
    assert block.view.tolist() == [-1.5] * 3
    assert network.fresh(block, torch.Generator().manual_seed(1)).tolist() == [-1.5] * 3
    assert [u.name for u in network.units().groups] == ["fc1"]
