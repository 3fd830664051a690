"""ReDo against its slow twin, on four networks; silent units, laws, moments, receipts."""

import copy
import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.methods.redo import dormant, redo
from tests.cases import about
from tests.methods.spoilt_nets import give, prepared, probe, recycled, silent, tables
from tests.methods.unit_nets import NETS, Trained, entries, normal
from tests.models import assert_same
from tests.naive import redo as naive


def activations(network: Network, x: Tensor) -> dict[str, Tensor]:
    """What a probe in evaluation mode gives."""
    module = network.module
    training = module.training
    module.eval()
    with torch.no_grad(), rlplast.record(network) as found:
        module(x)
    module.train(training)
    return found


def masks_of(made: Trained, x: Tensor, threshold: float) -> dict[str, list[bool]]:
    h = activations(made.network, x)
    return {name: naive.dormant(h[name], threshold) for name in made.groups}


SETTINGS = [(0.0, "zero", "adam"), (0.1, "redraw", "adamw_fused"), (0.1, "zero", "sgd_momentum")]


@pytest.mark.parametrize("net", NETS)
def test_weights_norm_entries_and_moments_are_the_twins(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for threshold, overlap, optimizer in SETTINGS:
        with about(threshold, overlap, optimizer), monkeypatch.context() as patched:
            compare(net, optimizer, threshold, overlap, patched)


def outputs(made: Trained, x: Tensor) -> Tensor:
    """What the network gives in evaluation mode."""
    with torch.no_grad():
        return copy.deepcopy(made.module).eval()(x)


def compare(
    net: str, optimizer: str, threshold: float, overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x = prepared(net, optimizer), probe(net)
    masks, fresh = masks_of(made, x, threshold), tables(made.module, net)
    for name, mask in masks.items():
        assert sum(mask) == silent(len(mask)) + (threshold > 0), name
    expected = recycled(made, net, masks, fresh, overlap)
    touched = entries(made.module, net, masks)
    before, moments, out = made.state(), made.moments(), outputs(made, x)
    give(made.network, monkeypatch, fresh)
    receipt = redo(made.network, inputs=x, threshold=threshold, overlap=overlap)
    assert_same(dict(expected.state_dict()), made.state())
    made.assert_edited_alone(touched, before, moments)
    assert threshold > 0 or torch.equal(outputs(made, x), out)  # the units were silent
    assert receipt.units == {name: sum(mask) for name, mask in masks.items()}
    assert receipt.entries_touched == sum(int(t.sum()) for t in touched.values())
    assert (receipt.optimizer_policy, receipt.followers) == ("touched", {})


def test_dormant_units_are_the_twins() -> None:
    for shape, threshold in product(((9, 7), (5, 7, 3, 4)), (0.0, 0.025, 0.1, 0.5, 1.0)):
        h = normal(*shape, seed=3).relu()
        h[:, 1] = 0
        h[:, 4] *= 1e-3
        assert dormant(h, threshold).tolist() == naive.dormant(h, threshold), (shape, threshold)
        assert dormant(torch.zeros(shape), threshold).all()


def test_score_is_mean_size_over_the_layers_mean_size() -> None:
    h = torch.tensor([[1.0, -3.0, 0.0], [1.0, 1.0, 0.0]])  # means 1, 2, 0; of all 1
    for threshold, expected in ((0.0, [False, False, True]), (0.999, [False, False, True])):
        assert dormant(h, threshold).tolist() == expected
    assert dormant(h, 1.0).tolist() == [True, False, True]
    assert dormant(h, 2.0).tolist() == [True, True, True]


def test_dormancy_does_not_depend_on_memory_format_or_low_precision() -> None:
    h = normal(6, 5, 4, 4, seed=1).relu()
    h[:, 2] *= 1e-4
    h[:, 3] = 0
    last = h.contiguous(memory_format=torch.channels_last)
    for value in (h, h.bfloat16(), h.double(), last, last.bfloat16()):
        assert dormant(value, 0.1).tolist() == [False, False, True, True, False]


def test_a_long_mean_in_bf16_is_summed_in_float32() -> None:
    # 4096 ones: a bf16 sum stops at 256
    h = torch.ones(4096, 2, dtype=torch.bfloat16)
    h[:, 1] = 0.125
    assert not dormant(h, 0.2).any()
    assert dormant(h, 0.23).tolist() == [False, True]  # 0.125 / 0.5625 = 0.222


@torch.no_grad()
def mute(first: nn.Module, nonlinearity: type[nn.Module], *rest: nn.Module) -> Network:
    """A network whose hidden units are all silent."""
    first.weight.zero_()  # type: ignore[union-attr, operator]
    first.bias.zero_()  # type: ignore[union-attr, operator]
    return Network("net", nn.Sequential(first, nonlinearity(), *rest))


def test_incoming_weights_follow_the_law_and_biases_are_zero() -> None:
    for convs, init, nonlinearity in product(
        (False, True), ("own", "kaiming", "lecun"), (nn.ReLU, nn.Tanh)
    ):
        if convs:
            network = mute(nn.Conv2d(3, 60, 3), nonlinearity, nn.Flatten(), nn.Linear(60, 2))
            x, fan_in = torch.ones(2, 3, 3, 3), 27
        else:
            network = mute(nn.Linear(40, 60), nonlinearity, nn.Linear(60, 2))
            x, fan_in = torch.ones(2, 40), 40
        redo(network, inputs=x, init=init, threshold=0)
        gain = {nn.ReLU: math.sqrt(2), nn.Tanh: 5 / 3}[nonlinearity]
        factor = {"own": 1.0, "kaiming": gain * math.sqrt(3), "lecun": math.sqrt(3)}[init]
        bound = factor / math.sqrt(fan_in)
        weight = network.module.get_parameter("0.weight").detach()
        with about(convs, init, nonlinearity):
            assert 0.99 * bound < weight.abs().max() <= bound
            assert float(weight.square().mean()) == pytest.approx(bound**2 / 3, rel=0.1)
            assert abs(float(weight.mean())) < 0.05 * bound
            assert not network.module.get_parameter("0.bias").any()


@pytest.mark.parametrize("init", ["kaiming", "lecun"])
def test_every_layer_is_drawn_whole_from_the_firings_stream(init: str) -> None:
    made, x = prepared("mlp"), probe("mlp")
    masks = masks_of(made, x, 0.0)
    stream = torch_stream(5, "hook", "redo", "net", 1)
    fresh = {}
    for name in ("0", "2"):
        shape = made.module.get_parameter(f"{name}.weight").shape
        bound = math.sqrt((2 if init == "kaiming" else 1) * 3 / shape[1])
        fresh[name] = torch.empty(shape).uniform_(-bound, bound, generator=stream)
    expected = recycled(made, "mlp", masks, fresh, "zero")
    redo(made.network, inputs=x, threshold=0, init=init, seed=5)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(made.state()[name], tensor, rtol=1e-6, atol=0)
