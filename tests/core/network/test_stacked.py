import itertools
import math

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.network.network import Network, torch_default
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_members_compute_and_learn_as_separate_linears() -> None:
    for bias, own_input in itertools.product((True, False), (True, False)):
        layer = StackedLinear(3, 5, 4, bias=bias)
        x = torch.randn((3, 7, 5) if own_input else (7, 5), generator=generator(1))
        out = layer(x)
        out[1].square().sum().backward()
        assert out.shape == (3, 7, 4) and layer.weight.grad is not None
        for index in range(3):
            member = nn.Linear(5, 4, bias=bias)
            with torch.no_grad():
                for own, stacked in zip(member.parameters(), layer.parameters(), strict=True):
                    own.copy_(stacked[index])
            expected = member(x[index] if own_input else x)
            torch.testing.assert_close(out[index], expected)
            if index != 1:
                assert layer.weight.grad[index].abs().max() == 0
                continue
            expected.square().sum().backward()
            for own, stacked in zip(member.parameters(), layer.parameters(), strict=True):
                assert stacked.grad is not None
                torch.testing.assert_close(stacked.grad[index], own.grad)


def test_each_member_is_a_block_with_its_own_fans() -> None:
    module = nn.Sequential()
    module.add_module("fc1", StackedLinear(2, 6, 4))
    blocks = {b.name: b for b in Network("critic", module).blocks}
    assert list(blocks) == ["[0].fc1.weight", "[0].fc1.bias", "[1].fc1.weight", "[1].fc1.bias"]
    weight = blocks["[1].fc1.weight"]
    assert weight.view.shape == (4, 6)
    assert (weight.spec.fan_in, weight.spec.fan_out, weight.spec.member) == (6, 4, 1)
    assert weight.view.data_ptr() == module.get_parameter("fc1.weight")[1].data_ptr()
    assert Network("critic", module).qualified(weight) == "critic[1].fc1.weight"


def test_init_has_the_spread_of_one_members_fans() -> None:
    # trap: over the stacked shape (2, 300, 400) fans are 120000 and the bound 0.003
    network = Network("critic", StackedLinear(2, 400, 300))
    bound = 1 / math.sqrt(400)
    for redraw in (False, True):
        if redraw:
            network.initialise(generator(1))
        for block in network.blocks:
            assert block.view.abs().max() <= bound
            assert float(block.view.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    plain = torch_default(Network("q", nn.Linear(400, 300)).blocks[0], generator(2))
    assert torch.equal(plain, torch_default(network.blocks[0], generator(2)))


def stacked_norm(members: int = 2, dim: int = 6, eps: float = 1e-6) -> StackedLayerNorm:
    """Return a norm that scales and shifts every unit of every member differently."""
    layer = StackedLayerNorm(members, dim, eps)
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.randn(members, dim, generator=generator(i)))
    return layer


def test_norm_equals_separate_layer_norms_forward_and_backward() -> None:
    for eps in (1e-6, 0.1):
        layer = stacked_norm(3, 6, eps).double()
        x = (3 + 2 * torch.randn(3, 7, 6, generator=generator(9)).double()).requires_grad_()
        weights = torch.randn(3, 7, 6, generator=generator(10)).double()
        out = layer(x)
        (out * weights).sum().backward()
        assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
        for index in range(3):
            member = nn.LayerNorm(6, eps=eps).double()
            with torch.no_grad():
                member.weight.copy_(layer.weight[index])
                member.bias.copy_(layer.bias[index])
            own = x[index].detach().requires_grad_()
            expected = member(own)
            (expected * weights[index]).sum().backward()
            torch.testing.assert_close(out[index], expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(x.grad[index], own.grad, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(layer.weight.grad[index], member.weight.grad)
            torch.testing.assert_close(layer.bias.grad[index], member.bias.grad)


def test_norm_of_half_precision_is_rounded_only_once() -> None:
    # Mean and variance taken in bf16 would be wrong in the third digit.
    layer = stacked_norm(2, 256)
    x = (40 + torch.randn(2, 5, 256, generator=generator(3))).bfloat16()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, layer(x.float()).bfloat16())


def test_each_member_of_a_norm_is_a_scale_and_a_shift() -> None:
    module = nn.Sequential()
    module.add_module("norm", stacked_norm())
    network = Network("critic", module)
    found = {b.name: (b.role, b.kind, b.spec.member) for b in network.blocks}
    assert found == {
        "[0].norm.weight": ("scale", "norm", 0),
        "[0].norm.bias": ("shift", "norm", 0),
        "[1].norm.weight": ("scale", "norm", 1),
        "[1].norm.bias": ("shift", "norm", 1),
    }
    assert network.blocks[2].view.data_ptr() == module.get_parameter("norm.weight")[1].data_ptr()
    network.initialise(generator())
    assert [float(b.view.sum()) for b in network.blocks] == [6, 0, 6, 0]


def test_rescaling_starts_anew_at_a_stacked_norm() -> None:
    # With a norm between them the first layer's factor must not reach the last layer's bias.
    module = nn.Sequential(StackedLinear(2, 4, 6), StackedLayerNorm(2, 6), StackedLinear(2, 6, 3))
    network = Network("critic", module)
    network.initialise(generator())
    with torch.no_grad():
        module.get_parameter("0.weight").mul_(5)
    before = module.get_parameter("2.bias").clone()
    rlplast.swr(network, coef=0.5)
    assert torch.allclose(module.get_parameter("2.bias"), before, rtol=1e-6)
