"""Shrink and perturb against its closed form, entry by entry."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.methods.nets import ConvNet, Mlp, changed, randomise, snapshot
from tests.methods.unit_nets import moments_of
from tests.models import assert_same
from tests.naive.interventions import shrink_noise_twin, shrink_perturb_twin

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def started_and_trained(norm: bool = True) -> tuple[nn.Module, dict[str, Tensor]]:
    model = randomise(ConvNet(norm=norm), 1)
    start = snapshot(model)
    return randomise(model, 2), start


def assert_close(ours: Tensor, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=1e-6, atol=1e-7)


def perturb(model: nn.Module, **options: Any) -> dict[str, Tensor]:
    rlplast.shrink_perturb(model, **options)
    return snapshot(model)


def test_parameters_are_mixed_with_their_start_and_running_statistics_when_asked() -> None:
    for coef, asked in ((0.2, False), (0.5, True), (0.8, False)):
        model, start = started_and_trained()
        model.get_buffer("1.num_batches_tracked").fill_(9)
        model.register_buffer("seen", torch.tensor([8.0]))
        before, start["seen"] = snapshot(model), torch.tensor([1.0])
        after = perturb(model, coef=coef, running_stats=asked, initial=start)
        for name in before:
            other = name == "seen" or "num_batches" in name
            if other or (name.endswith(STATISTICS) and not asked):
                assert torch.equal(after[name], before[name]), name
            else:
                twin = shrink_perturb_twin(before[name].numpy(), start[name].numpy(), coef)
                assert_close(after[name], twin)


def test_zero_changes_no_bit_and_one_is_the_start_bit_for_bit() -> None:
    model, start = started_and_trained(norm=False)
    before = snapshot(model)
    perturb(model, coef=0, initial=start)
    assert not changed(before, model)
    perturb(model, coef=1, initial=start)
    assert not changed(start, model)


def test_fresh_mixes_in_a_draw_from_each_layers_law() -> None:
    coef = 0.2
    model = randomise(ConvNet(norm=True), 1)
    before = snapshot(model)
    after = perturb(model, coef=coef, init="fresh", seed=3)
    draw = perturb(randomise(ConvNet(norm=True), 1), coef=1, init="fresh", seed=3)
    for name in before:
        if not name.endswith(STATISTICS):
            twin = shrink_perturb_twin(before[name].numpy(), draw[name].numpy(), coef)
            assert_close(after[name], twin)
    assert draw["7.weight"].abs().max() <= 1 / math.sqrt(54)
    assert draw["1.weight"].eq(1).all() and draw["1.bias"].eq(0).all()


def test_two_coefficients_shrink_and_add_a_little_of_a_fresh_draw() -> None:
    model = randomise(Mlp(), 1)
    before = snapshot(model)
    after = perturb(model, shrink=0.4, noise=0.01, seed=3)
    draw = perturb(randomise(Mlp(), 1), shrink=0, noise=1, seed=3)
    for name in before:
        twin = shrink_noise_twin(before[name].numpy(), draw[name].numpy(), 0.4, 0.01)
        assert_close(after[name], twin)


def test_xaviers_draw_is_of_weights_alone_and_has_glorots_deviation() -> None:
    model = nn.Sequential(nn.Linear(300, 100), nn.LayerNorm(100), nn.Conv2d(20, 30, 3))
    before = snapshot(randomise(model, 1))
    after = perturb(model, shrink=0.5, noise=2.0, init="xavier", seed=3)
    for name in ("0.bias", "1.weight", "1.bias", "2.bias"):
        torch.testing.assert_close(after[name], before[name] / 2)
    for name, fans in (("0.weight", 400), ("2.weight", 50 * 9)):
        drawn = (after[name] - before[name] / 2) / 2
        assert drawn.std().item() == pytest.approx(math.sqrt(2 / fans), rel=0.05)
        assert abs(drawn.mean().item()) < 0.01


def test_dqn_recipe_mixes_convs_returns_linears_and_keeps_adam() -> None:
    """Convs mixed, linears to θ0, the target by the same formula on its own weights."""
    model, target = randomise(ConvNet(), 1), randomise(ConvNet(), 1)
    start = snapshot(model)
    optimizer = torch.optim.Adam(model.parameters())
    network = rlplast.Network("q", model, optimizer, {"target": target})
    randomise(model, 2)
    randomise(target, 3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moments = moments_of(model, optimizer)
    before = {"online": snapshot(model), "target": snapshot(target)}
    recipe = {"scope": "dqn", "optimizer": "keep", "followers": "same_edit"}
    config = {"method": "shrink_perturb", "at": "50%", "params": {"coef": 0.8}, **recipe}
    (receipt,) = rlplast.Hooks([config], network, total="2 updates").step(updates=1)
    assert (receipt.optimizer_policy, receipt.followers) == ("keep", {"target": "same_edit"})
    for name, net in (("online", model), ("target", target)):
        after = snapshot(net)
        for tensor in after:
            if int(tensor[0]) < 5:  # convs, biases too
                old = before[name][tensor].numpy()
                assert_close(after[tensor], shrink_perturb_twin(old, start[tensor].numpy(), 0.8))
            else:
                assert torch.equal(after[tensor], start[tensor])
    for tensor, slots in moments_of(model, optimizer).items():
        assert_same(moments[tensor], slots)


def test_options_that_do_not_go_together_are_refused() -> None:
    for options, name in (({}, "initial="), ({"shrink": 0.5}, "noise"), ({"noise": 0.1}, "shrink")):
        with pytest.raises(rlplast.ConfigError, match=name):
            rlplast.shrink_perturb(Mlp(), **options)
