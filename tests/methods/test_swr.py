"""Soft Weight Rescaling: a float64 twin, the order of layers, and the paper's theorems."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rlplast
from tests.cases import about
from tests.methods.chains import (
    ALL,
    NORMED,
    anchors_of,
    assert_twin,
    inputs_for,
    layers_of,
    make,
    norms_of,
)
from tests.methods.nets import ConvNet, Mlp, changed, normal, randomise, snapshot
from tests.naive.interventions import SwrLayer, swr_twin


def test_both_rules_match_the_twin() -> None:
    for net, rule in product(ALL, ("exact", "printed")):
        with about(net, rule):
            network = make(ALL[net])
            before = snapshot(network.module)
            rlplast.swr(network, coef=0.0, rule=rule)
            assert not changed(before, network.module)
            expected, _ = swr_twin(layers_of(network.module), anchors_of(network), 0.1, 0.3, rule)
            rlplast.swr(network, coef=0.1, coef_head=0.3, rule=rule)
            assert_twin(network.module, expected)


def test_a_layer_of_zero_norm_keeps_its_zeros_and_passes_the_product_on() -> None:
    for zero, rule in product((0, 1, 3), ("exact", "printed")):
        network = make(NORMED["layer norm"])
        weight = network.module.get_parameter(f"{zero}.weight")
        anchors = anchors_of(network)
        with torch.no_grad():
            weight.zero_()
        expected, _ = swr_twin(layers_of(network.module), anchors, 0.2, 0.2, rule)
        rlplast.swr(network, coef=0.2, rule=rule)
        with about(zero, rule):
            assert_twin(network.module, expected)
            assert not weight.any()


def test_a_norm_layer_with_a_frozen_scale_still_restarts_the_product() -> None:
    network = make(NORMED["layer norm"])
    scale = network.module.get_parameter("1.weight").requires_grad_(False)
    frozen, before = scale.clone(), layers_of(network.module)
    anchors = anchors_of(network)
    without = [SwrLayer(x.kind, None if x.kind == "norm" else x.weight, x.bias) for x in before]
    expected, _ = swr_twin(without, anchors, 0.2, 0.2, "exact")
    rlplast.swr(network, coef=0.2)
    assert torch.equal(scale, frozen)
    expected[1].weight = frozen.numpy()
    assert_twin(network.module, expected)
    shift = layers_of(network.module)[1].bias
    np.testing.assert_array_equal(shift, without[1].bias)


def hooked(coef: float, **params: Any) -> tuple[rlplast.Hooks, nn.Module, torch.optim.Optimizer]:
    module = randomise(Mlp(), 0).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    config = {"method": "swr", "every": "1 updates", "params": {"coef": coef, **params}}
    hooks = rlplast.Hooks([config], rlplast.Network("q", module, optimizer), total="100 updates")
    return hooks, module, optimizer


@torch.no_grad()
def double(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.mul_(2)


@pytest.mark.parametrize("reanchor", [False, True])
@torch.no_grad()
def test_norms_are_anchored_anew_when_the_learning_rate_drops(reanchor: bool) -> None:
    hooks, module, optimizer = hooked(1.0, reanchor_on_lr_decay=reanchor)
    start = float(module.get_parameter("2.weight").norm())

    def norm_after_doubling(lr: float, updates: int) -> float:
        optimizer.param_groups[0]["lr"] = lr
        double(module)
        hooks.step(updates=updates)
        return float(module.get_parameter("2.weight").norm()) / start

    new = 2.0 if reanchor else 1.0
    assert norm_after_doubling(0.1, 1) == pytest.approx(1.0)
    assert norm_after_doubling(0.1, 2) == pytest.approx(1.0)
    assert norm_after_doubling(0.01, 3) == pytest.approx(new)  # it drops: this norm is the anchor
    assert norm_after_doubling(0.01, 4) == pytest.approx(new)
    assert norm_after_doubling(0.1, 5) == pytest.approx(new)  # a rise changes nothing
    assert norm_after_doubling(0.05, 6) == pytest.approx(2 * new if reanchor else new)


@torch.no_grad()
def test_only_layers_whose_learning_rate_drops_are_anchored_anew() -> None:
    module = randomise(Mlp(), 0).double()
    groups = [{"params": module.get_submodule(path).parameters()} for path in "024"]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    config = {"method": "swr", "every": "1 updates"}
    config["params"] = {"coef": 1.0, "reanchor_on_lr_decay": True}
    hooks = rlplast.Hooks([config], rlplast.Network("q", module, optimizer), total="100 updates")
    start = {path: float(module.get_submodule(path).weight.norm()) for path in "024"}
    for update in (1, 2):
        double(module)
        optimizer.param_groups[1]["lr"] /= update  # at the second update half of it
        hooks.step(updates=update)
    new = {path: float(module.get_submodule(path).weight.norm()) for path in "024"}
    assert new == pytest.approx(start | {"2": 2 * start["2"]})


def test_summary_receipt_adds_up_the_logarithms_of_the_factors() -> None:
    hooks, module, _ = hooked(0.2)
    log_factor = 0.0
    for update in range(1, 4):
        double(module)
        before = [p.detach().norm() for p in module.parameters()]
        hooks.step(updates=update)
        after = [p.detach().norm() for p in module.parameters()]
        log_factor += sum(math.log(b / a) for a, b in zip(before, after, strict=True))
    (receipt,) = hooks.flush(rlplast.Clock(updates=3))
    assert receipt.log_factor == pytest.approx(log_factor, rel=1e-9)


class Functional(nn.Module):
    """A layer that is not called, but read."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.relu(self.trunk(x)), self.head.weight)


def tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


REFUSED: list[tuple[Callable[[], nn.Module], list[str] | None, str]] = [
    (Functional, None, r"q\.head\.weight"),
    (Mlp, ["2", "4"], r"q\.0\.weight"),
    (tied, None, r"q\.0\.weight .*2\.weight"),
    (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), None, r"q\.q\.weight, q\.k\.weight"),
    (lambda: nn.Sequential(nn.Embedding(3, 2)), None, "finds no"),
]


def test_what_has_no_single_forward_order_is_refused_by_name() -> None:
    for make_module, order, message in REFUSED:
        network = rlplast.Network("q", make_module(), order=order)
        before = snapshot(network.module)
        with about(message), pytest.raises(rlplast.ConfigError, match=message):
            rlplast.swr(network, coef=0.5)
        assert not changed(before, network.module)
    with pytest.raises(rlplast.ConfigError, match="initial="):
        rlplast.swr(Mlp(), coef=0.5)
    with pytest.raises(rlplast.ConfigError, match="exact"):
        rlplast.swr(make(Mlp), rule="printed", rescale_running_stats=True)


# Theorems, to rounding in float64.


def output_factor(network: rlplast.Network, coef: float) -> float:
    return swr_twin(layers_of(network.module), anchors_of(network), coef, coef, "exact")[1]


@torch.no_grad()
def test_theorem_one_outputs_stay_in_proportion() -> None:
    for net, coef in product(ALL, (1e-3, 0.5, 1.0)):
        network = make(ALL[net])
        network.module.train()  # BatchNorm by the statistics of the batch
        obs = inputs_for(network)
        before, factor = network.module(obs), output_factor(network, coef)
        rlplast.swr(network, coef=coef)
        after = network.module(obs)
        with about(net, coef):
            assert factor < 1
            scale = float(before.abs().max())
            torch.testing.assert_close(after, factor * before, rtol=0, atol=1e-12 * scale)
            assert torch.equal(after.argmax(1), before.argmax(1))


@torch.no_grad()
def test_printed_rule_leaks_into_the_last_norm_and_moves_argmaxes() -> None:
    kept = {}
    for rule in ("exact", "printed"):
        network = make(NORMED["layer norm"], growth=4.0)
        obs = inputs_for(network, samples=512)
        before = network.module(obs).argmax(1)
        rlplast.swr(network, coef=0.5, rule=rule)
        kept[rule] = float((network.module(obs).argmax(1) == before).double().mean())
    assert kept["exact"] == 1.0
    assert 0.5 < kept["printed"] < 1.0


@torch.no_grad()
def test_batch_norm_in_evaluation_needs_its_statistics_rescaled() -> None:
    outputs = {}
    for rescale in (False, True):
        network = make(NORMED["batch norm"])
        network.module.eval()
        obs = inputs_for(network)
        before, factor = network.module(obs), output_factor(network, 0.5)
        rlplast.swr(network, coef=0.5, rescale_running_stats=rescale)
        after = network.module(obs)
        outputs[rescale] = float((after - factor * before).norm() / (factor * before).norm())
        assert int(snapshot(network.module)["1.num_batches_tracked"]) == 7
    assert outputs[True] < 1e-12
    assert outputs[False] > 0.1


@given(coef=st.floats(0.3, 1), growth=st.floats(0.25, 4))
@settings(max_examples=3)
@torch.no_grad()
def test_norms_stay_below_theorem_twos_bound_and_an_mlp_lipschitz_with_their_product(
    coef: float, growth: float
) -> None:
    """Corollary 2.1: 1-Lipschitz activations; updates add B = growth to each squared norm.

    Equal entries make the spectral norms the Frobenius ones, and aligned: without SWR the bound
    is left behind.
    """
    net = Mlp().double()
    for param in net.parameters():
        param.fill_(0.1)
    network = rlplast.Network("q", net)
    weights = [param for param in net.parameters() if param.ndim == 2]
    bounds = [float(w.norm()) + math.sqrt(growth) / coef for w in weights]
    free = [float(w.norm()) for w in weights]
    obs = inputs_for(network, samples=64)
    for step in range(40):
        for number, weight in enumerate(weights):
            weight.mul_(math.sqrt(1 + growth / float(weight.norm()) ** 2))
            free[number] = math.hypot(free[number], math.sqrt(growth))
            assert float(weight.norm()) <= bounds[number] * (1 + 1e-12)
        for other in (obs + 1, obs + normal(*obs.shape, seed=step)):
            moves = (net(obs) - net(other)).norm(dim=1)
            assert (moves <= math.prod(bounds) * (obs - other).norm(dim=1) * (1 + 1e-12)).all()
        rlplast.swr(network, coef=coef, coef_head=coef)
    assert all(size > bound for size, bound in zip(free, bounds, strict=True))


@given(coef=st.floats(0, 1), seed=st.integers(0, 2**31), growth=st.floats(0.1, 10))
@settings(max_examples=8)
def test_balance_never_gets_worse_with_one_coefficient(
    coef: float, seed: int, growth: float
) -> None:
    network = make(ConvNet, seed, growth)

    def ratios(norms: list[float]) -> np.ndarray:
        return np.array([[a / b for a in norms] for b in norms])

    start = ratios(anchors_of(network))
    before = ratios(norms_of(layers_of(network.module)))
    rlplast.swr(network, coef=coef, coef_head=coef)
    after = ratios(norms_of(layers_of(network.module)))
    assert (np.abs(after - start) <= np.abs(before - start) + 1e-12).all()


def test_balance_can_get_worse_with_two_coefficients() -> None:
    network = rlplast.Network("q", randomise(ConvNet(), 0).double())
    with torch.no_grad():
        for parameter in network.module.parameters():
            parameter.mul_(3)  # every ratio of norms is as it was
    rlplast.swr(network, coef=0.1, coef_head=0.9)
    conv, *_, head = norms_of(layers_of(network.module))
    first, *_, last = anchors_of(network)
    assert abs(head / conv - last / first) > 0.1
