"""Shrink and perturb against its closed form, entry by entry."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.methods.nets import ConvNet, Mlp, changed, randomise, snapshot
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


def test_a_fresh_draw_of_each_layers_law_is_mixed_in_with_one_coefficient_or_two() -> None:
    model = randomise(ConvNet(norm=True), 1)
    before = snapshot(model)
    draw = perturb(model, coef=1, init="fresh", seed=3)
    for options, shrink, noise in (
        ({"coef": 0.2, "init": "fresh"}, 0.8, 0.2),
        ({"shrink": 0.4, "noise": 0.01}, 0.4, 0.01),
    ):
        after = perturb(randomise(ConvNet(norm=True), 1), seed=3, **options)
        for name in before:
            if not name.endswith(STATISTICS):
                twin = shrink_noise_twin(before[name].numpy(), draw[name].numpy(), shrink, noise)
                assert_close(after[name], twin)
    assert draw["7.weight"].abs().max() <= 1 / math.sqrt(54)
    assert draw["1.weight"].eq(1).all() and draw["1.bias"].eq(0).all()


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


def test_options_that_do_not_go_together_are_refused() -> None:
    for options, name in (({}, "initial="), ({"shrink": 0.5}, "noise"), ({"noise": 0.1}, "shrink")):
        with pytest.raises(rlplast.ConfigError, match=name):
            rlplast.shrink_perturb(Mlp(), **options)
