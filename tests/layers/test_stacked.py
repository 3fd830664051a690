import math

import pytest
import torch
from torch import nn

from rlplast.core.network import Network, torch_default
from rlplast.layers.stacked import StackedLinear


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("own_input", [True, False], ids=["input_per_slot", "one_input"])
def test_output_equals_that_of_separate_linears(bias: bool, own_input: bool) -> None:
    layer = StackedLinear(3, 5, 4, bias=bias, generator=generator())
    shape = (3, 7, 5) if own_input else (7, 5)
    x = torch.randn(shape, generator=generator(1))
    out = layer(x)
    assert out.shape == (3, 7, 4)
    for slot in range(3):
        member = nn.functional.linear(
            x[slot] if own_input else x,
            layer.weight[slot],
            None if layer.bias is None else layer.bias[slot],
        )
        torch.testing.assert_close(out[slot], member)


def test_gradient_of_a_slot_is_that_of_its_own_linear() -> None:
    layer = StackedLinear(2, 5, 4, generator=generator())
    x = torch.randn(7, 5, generator=generator(1))
    layer(x)[1].square().sum().backward()
    member = nn.Linear(5, 4)
    with torch.no_grad():
        member.weight.copy_(layer.weight[1])
        assert layer.bias is not None
        member.bias.copy_(layer.bias[1])
    member(x).square().sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad[1], member.weight.grad)
    torch.testing.assert_close(layer.bias.grad[1], member.bias.grad)
    assert layer.weight.grad[0].abs().max() == 0


def test_each_slot_is_a_block_with_its_own_fans() -> None:
    module = nn.Sequential()
    module.add_module("fc1", StackedLinear(2, 6, 4))
    blocks = {b.name: b for b in Network("critic", module).blocks}
    assert list(blocks) == ["[0].fc1.weight", "[0].fc1.bias", "[1].fc1.weight", "[1].fc1.bias"]
    weight = blocks["[1].fc1.weight"]
    assert weight.view.shape == (4, 6)
    assert (weight.spec.fan_in, weight.spec.fan_out, weight.spec.slot) == (6, 4, 1)
    assert weight.view.data_ptr() == module.get_parameter("fc1.weight")[1].data_ptr()
    assert Network("critic", module).qualified(weight) == "critic[1].fc1.weight"


@pytest.mark.parametrize("redraw", [False, True], ids=["constructor", "fresh"])
def test_init_has_the_spread_of_one_slots_fans(redraw: bool) -> None:
    # trap: over the stacked shape (2, 300, 400) fans are 120000 and the bound 0.003
    layer = StackedLinear(2, 400, 300, generator=generator())
    network = Network("critic", layer)
    if redraw:
        network.initialise(generator(1))
    bound = 1 / math.sqrt(400)
    for block in network.blocks:
        assert block.view.abs().max() <= bound
        std = bound / math.sqrt(3)
        assert float(block.view.std()) == pytest.approx(std, rel=0.1)
    plain = torch_default(Network("q", nn.Linear(400, 300)).blocks[0], generator(2))
    stacked = torch_default(network.blocks[0], generator(2))
    assert torch.equal(plain, stacked)


def test_same_generator_gives_the_same_layer_and_leaves_the_global_stream() -> None:
    before = torch.get_rng_state()
    first = StackedLinear(2, 3, 4, generator=generator(5))
    second = StackedLinear(2, 3, 4, generator=generator(5))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("shape", [(5,), (3, 7, 5), (2, 2, 7, 5)])
def test_input_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    layer = StackedLinear(2, 5, 4)
    with pytest.raises(ValueError, match=r"allowed is \(2, batch, 5\) or \(batch, 5\)"):
        layer(torch.zeros(shape))


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_empty_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="= 0: allowed is at least 1"):
        StackedLinear(*sizes)


def test_layer_prints_its_sizes() -> None:
    assert repr(StackedLinear(2, 3, 4)) == "StackedLinear(2, 3, 4, bias=True)"
