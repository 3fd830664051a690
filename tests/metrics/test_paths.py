"""The longest path against brute force over all paths, and against products by hand."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.core.network.network import Network
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.methods.plasticity_injection import PlasticityInjection
from rlplast.metrics.balance import lipschitz_bound
from rlplast.metrics.paths import LongestPath, longest_path
from tests.methods.unit_nets import normal

IMAGE = (1, 3, 8, 8)


def norm(weight: Tensor) -> float:
    matrix = weight.detach().double().flatten(1).numpy()
    return float(np.linalg.norm(matrix, 2)) * math.sqrt(math.prod(weight.shape[2:]))


def drawn(net: nn.Module, seed: int) -> Any:
    """Draw every matrix with another norm, so that some branches are above 1 and some below."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.normal_(generator=generator)
                parameter.mul_(4 * torch.rand((), generator=generator) / norm(parameter))
    return net.eval()


def bound_of(net: nn.Module, *inputs: Tensor) -> LongestPath:
    (found,) = longest_path(Network("net", net), lambda module: module(*inputs)).values()
    return found


def names(found: LongestPath) -> list[str]:
    return [block.name.removesuffix(".weight") for block in found.weights]


class Wired(nn.Module):
    """A random wiring: nodes add or multiply what they read of earlier ones, and apply a layer.

    Args:
        sources: of each node, the earlier nodes that it reads; 0 is the input.
        layers: whether each node applies a linear layer.
        gated: whether it multiplies what it reads.
    """

    def __init__(self, sources: list[list[int]], layers: list[bool], gated: list[bool]) -> None:
        super().__init__()
        self.sources, self.gated = sources, gated
        made = [nn.Linear(4, 4) if layer else nn.Tanh() for layer in layers]
        self.layers = nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for sources, layer, gated in zip(self.sources, self.layers, self.gated, strict=True):
            parts = torch.stack([found[i] for i in sources])
            found.append(layer(parts.prod(0) if gated else parts.sum(0)))
        return found[-1]

    def paths(self, node: int) -> Iterator[list[int]]:
        if node == 0:
            yield []
            return
        for source in self.sources[node - 1]:
            for path in self.paths(source):
                yield [*path, node]


@st.composite
def wirings(draw: st.DrawFn) -> Wired:
    count = draw(st.integers(1, 7))
    sources = [
        sorted(draw(st.sets(st.integers(0, i), min_size=1, max_size=3))) for i in range(count)
    ]
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    return Wired(sources, draw(flags), draw(flags))


@given(net=wirings(), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_of_any_wiring_it_is_the_largest_product_over_all_paths(net: Wired, seed: int) -> None:
    drawn(net, seed)
    linear = {i: m for i, m in enumerate(net.layers, 1) if isinstance(m, nn.Linear)}
    products = {
        tuple(i for i in path if i in linear): math.prod(
            norm(linear[i].weight) for i in path if i in linear
        )
        for path in net.paths(len(net.layers))
    }
    best = max(products, key=products.__getitem__)
    if not linear:
        assert longest_path(Network("net", net), lambda module: module(normal(2, 4))) == {}
        return
    found = bound_of(net, normal(2, 4))
    assert float(found.bound) == pytest.approx(products[best], rel=1e-5)
    assert names(found) == [f"layers.{i - 1}" for i in best]


def test_of_a_chain_it_is_the_bound_of_all_layers_bit_for_bit() -> None:
    before = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    net = drawn(nn.Sequential(*before, nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 2)), seed=0)
    found = bound_of(net, normal(*IMAGE))
    weights = [net[i].weight.detach() for i in (0, 4, 6)]
    assert names(found) == ["0", "4", "6"]
    assert torch.equal(found.bound, lipschitz_bound(weights))


def test_a_gpt_counts_its_tied_head_and_no_look_up() -> None:
    config = GPTModelConfig(layers=3, heads=2, width=4, context=8, vocab_size=11)
    net = drawn(GPT(config), seed=3)
    product = norm(net.lm_head.weight)
    for block in net.h:
        attention = max(map(norm, block.attn.c_attn.weight.chunk(3)))
        product *= max(1.0, attention * norm(block.attn.c_proj.weight))
        product *= max(1.0, norm(block.mlp.c_fc.weight) * norm(block.mlp.c_proj.weight))
    found = bound_of(net, torch.arange(5)[None])
    assert float(found.bound) == pytest.approx(product, rel=1e-5)
    assert names(found)[-1] == "wte" and "wpe" not in names(found)


def test_an_actor_takes_its_larger_head_and_critics_have_a_path_each() -> None:
    spec = TrunkSpec("simba", width=3, blocks=3)
    actor, critic = drawn(Actor(4, 2, spec), seed=4), drawn(Critic(4, 2, spec), seed=5)
    obs, action = normal(1, 4), normal(1, 2)

    def product(net: Any, of: Callable[[Any], float], heads: list[nn.Module]) -> float:
        inside = [of(block.fc1) * of(block.fc2) for block in net.blocks]
        last = max(of(head) for head in heads)
        return of(net.input) * math.prod(max(1.0, own) for own in inside) * last

    expected = product(actor, lambda m: norm(m.weight), [actor.mean, actor.log_std])
    assert float(bound_of(actor, obs).bound) == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():  # the members differ
        critic.head.weight[1] *= 3
    found = longest_path(Network("critic", critic), lambda module: module(obs, action))
    assert list(found) == [("[0]",), ("[1]",)]
    for member, path in enumerate(found.values()):
        expected = product(critic, lambda m, i=member: norm(m.weight[i]), [critic.head])
        assert float(path.bound) == pytest.approx(expected, rel=1e-5)


def test_frozen_layers_and_frozen_copies_count() -> None:
    net = drawn(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), seed=6)
    net[0].requires_grad_(requires_grad=False)
    expected = norm(net[0].weight) * norm(net[2].weight)
    x = normal(1, 4)
    assert float(bound_of(net, x).bound) == pytest.approx(expected, rel=1e-5)
    PlasticityInjection().install(net, seed=0)
    with torch.no_grad():
        net[2].old[0].weight.copy_(10 * net[2].weight)
    assert float(bound_of(net, x).bound) == pytest.approx(10 * expected, rel=1e-5)


def test_what_is_no_number_is_not_hidden_by_another_branch() -> None:
    net = Wired([[0], [0], [1, 2]], [True, True, False], [False] * 3)
    with torch.no_grad():
        net.layers[0].weight[0, 0] = math.nan
    assert bound_of(net, normal(1, 4)).bound.isnan()
