"""ReDo against its slow twin, on four networks; silent units, laws, moments, receipts."""

import copy
import math
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.methods.recycling import mean_over_samples
from rlplast.methods.redo import dormant, redo
from tests.cases import about
from tests.methods.unit_nets import (
    NETS,
    Trained,
    chains,
    check_recycling,
    normal,
    prepared,
    probe,
    silent,
)
from tests.models import observed
from tests.naive import redo as naive


def masks_of(made: Trained, x: Tensor, threshold: float) -> dict[str, list[bool]]:
    h = observed(made.network, x)
    return {name: naive.dormant(h[name], threshold) for name in made.groups}


@pytest.mark.parametrize("net", NETS)
def test_weights_norm_entries_and_moments_are_the_twins(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for threshold, overlap, optimizer in (
        (0.0, "zero", "adam"),
        (0.1, "redraw", "adamw_fused"),
        (0.1, "zero", "sgd_momentum"),
    ):
        made, x = prepared(net, optimizer), probe(net)
        masks = masks_of(made, x, threshold)
        for name, mask in masks.items():
            assert sum(mask) == silent(len(mask)) + (threshold > 0), name
        out = made.module.eval()(x)
        with about(threshold, overlap, optimizer), monkeypatch.context() as patched:
            fire = partial(redo, made.network, inputs=x, threshold=threshold, overlap=overlap)
            check_recycling(made, masks, overlap, fire, patched)
        assert threshold > 0 or torch.equal(made.module(x), out)  # the units were silent


def test_dormancy_does_not_depend_on_memory_format_or_low_precision() -> None:
    h = normal(6, 5, 4, 4, seed=1).relu()
    h[:, 2] *= 1e-4
    h[:, 3] = 0
    last = h.contiguous(memory_format=torch.channels_last)
    for value in (h, h.bfloat16(), h.double(), last, last.bfloat16()):
        assert dormant(value, 0.1).tolist() == [False, False, True, True, False]
    assert dormant(torch.zeros(3, 5), 0.1).all()
    low = h.bfloat16()
    torch.testing.assert_close(mean_over_samples(low), mean_over_samples(low.float()))


@torch.no_grad()
def mute(first: nn.Module, nonlinearity: type[nn.Module], *rest: nn.Module) -> Network:
    first.weight.zero_()
    first.bias.zero_()
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
    twin = copy.deepcopy(made.module)
    [chain] = chains(twin, "mlp")
    fresh = []
    for layer in chain.values():
        bound = math.sqrt((2 if init == "kaiming" else 1) * 3 / layer.w.shape[1])
        fresh.append(torch.empty(layer.w.shape).uniform_(-bound, bound, generator=stream))
    naive.recycle(list(chain.values()), [masks[name] for name in chain], fresh, "zero")
    redo(made.network, inputs=x, threshold=0, init=init, seed=5)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(made.state()[name], tensor, rtol=1e-6, atol=0)
