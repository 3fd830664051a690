"""Soft Weight Rescaling against a float64 twin, once and at every update."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.methods.chains import (
    ALL,
    NORMED,
    assert_twin,
    layers_of,
    make,
    norms_of,
    weights_of_theta0,
)
from tests.methods.nets import Mlp, changed, randomise, snapshot
from tests.naive.interventions import SwrLayer, swr_twin

# --- against the twin ---------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["exact", "printed"])
@pytest.mark.parametrize("net", ALL)
def test_both_rules_match_the_twin(net: str, rule: str) -> None:
    anchors = norms_of(layers_of(randomise(ALL[net](), 0)))
    network = make(ALL[net])
    expected, _ = swr_twin(layers_of(network.module), anchors, 0.1, 0.3, rule)
    rlplast.swr(network, coef=0.1, coef_head=0.3, rule=rule)
    assert_twin(network.module, expected)


@pytest.mark.parametrize("rule", ["exact", "printed"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_layer_of_zero_norm_keeps_its_zeros_and_passes_the_product_on(
    zero: int, rule: str
) -> None:
    network = make(NORMED["layer norm"])
    weight = network.module.get_parameter(f"{zero}.weight")
    anchors = [float(w.norm()) for w in weights_of_theta0(network)]
    with torch.no_grad():
        weight.zero_()
    expected, _ = swr_twin(layers_of(network.module), anchors, 0.2, 0.2, rule)
    rlplast.swr(network, coef=0.2, rule=rule)
    assert_twin(network.module, expected)
    assert not weight.any()


def test_a_norm_layer_with_a_frozen_scale_still_restarts_the_product() -> None:
    network = make(NORMED["layer norm"])
    scale = network.module.get_parameter("1.weight").requires_grad_(False)
    frozen, before = scale.clone(), layers_of(network.module)
    anchors = [float(w.norm()) for w in weights_of_theta0(network)]
    without = [SwrLayer(x.kind, None if x.kind == "norm" else x.weight, x.bias) for x in before]
    expected, _ = swr_twin(without, anchors, 0.2, 0.2, "exact")
    rlplast.swr(network, coef=0.2)
    assert torch.equal(scale, frozen)
    expected[1].weight = frozen.numpy()
    assert_twin(network.module, expected)
    shift = layers_of(network.module)[1].bias
    assert shift is not None
    np.testing.assert_array_equal(shift, without[1].bias)


def test_one_coefficient_for_the_classifier_and_one_for_convs_and_norms() -> None:
    network = make(NORMED["batch norm"])
    theta0 = [float(w.norm()) for w in weights_of_theta0(network)]
    before = norms_of(layers_of(network.module))
    rlplast.swr(network, coef=0.0, coef_head=1.0)
    after = norms_of(layers_of(network.module))
    np.testing.assert_array_equal(after[:4], before[:4])
    np.testing.assert_allclose(after[4:], theta0[4:], rtol=1e-14)


@pytest.mark.parametrize("net", ALL)
def test_zero_coefficient_changes_no_bit(net: str) -> None:
    network = make(ALL[net])
    before = snapshot(network.module)
    rlplast.swr(network, coef=0.0)
    assert not changed(before, network.module)


# --- every update: anchors, receipts, policies ----------------------------------------------


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


def test_hook_does_every_update_what_the_function_does_once() -> None:
    hooks, module, _ = hooked(0.2)
    alone = randomise(Mlp(), 0).double()
    network = rlplast.Network("q", alone)
    for update in range(1, 4):
        double(module)
        hooks.step(updates=update)
        double(alone)
        rlplast.swr(network, coef=0.2)
    assert not changed(snapshot(alone), module)


def test_summary_receipt_adds_up_the_updates() -> None:
    hooks, module, _ = hooked(0.2)
    sfe, log_factor = 0.0, 0.0
    for update in range(1, 4):
        double(module)
        before = layers_of(module)
        hooks.step(updates=update)
        for old, new in zip(before, layers_of(module), strict=True):
            for a, b in ((old.weight, new.weight), (old.bias, new.bias)):
                assert a is not None and b is not None
                sfe += float(((a - b) ** 2).sum())
                log_factor += math.log(float(np.linalg.norm(b) / np.linalg.norm(a)))
    (receipt,) = hooks.flush(rlplast.Clock(updates=3))
    assert (receipt.method, receipt.firings) == ("swr", 3)
    assert receipt.sfe == pytest.approx(sfe, rel=1e-9)
    assert receipt.log_factor == pytest.approx(log_factor, rel=1e-9)


def test_a_bare_module_needs_its_initial_weights() -> None:
    with pytest.raises(ConfigError, match="initial="):
        rlplast.swr(Mlp(), coef=0.5)


def test_an_embedding_is_untouched() -> None:
    network = make(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    before = snapshot(network.module)
    rlplast.swr(network, coef=0.5)
    assert changed(before, network.module) == {"1.weight", "1.bias"}
