"""Optimizers and learning rates from a config, beside torch's own schedulers."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from rlplast.core.errors import ConfigError
from rlplast.core.network.optim_state import RULES
from rlplast.core.network.optimizers import OptimizerConfig, clip, lr_at, make_optimizer, set_lr

LENGTH = 20


def torchs(make) -> list[float]:
    """The learning rates one of torch's schedulers gives to LENGTH updates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = make(optimizer)
    rates = []
    for _ in range(LENGTH):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        (
            {"schedule": "cosine", "lr_min": 0.1},
            lambda o: lr_scheduler.CosineAnnealingLR(o, LENGTH, eta_min=0.1),
        ),
        (
            {"schedule": "linear", "lr_min": 0.1},
            lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, LENGTH),
        ),
        (
            {"schedule": "step", "milestones": [0.5, 0.75], "gamma": 0.1},
            lambda o: lr_scheduler.MultiStepLR(o, [10, 15], 0.1),
        ),
        ({"warmup": 0.25}, lambda o: lr_scheduler.LinearLR(o, 1 / 6, 1.0, 5)),
    ],
)
def test_learning_rates_are_torchs(options, make):
    config = OptimizerConfig(lr=0.5, **options)
    config.check()
    ours = [lr_at(config, done, LENGTH) for done in range(LENGTH)]
    assert ours == pytest.approx(torchs(make), rel=1e-6)


def test_warm_up_is_bounded_and_the_schedule_falls_over_what_is_left():
    config = OptimizerConfig(lr=1.0, warmup=0.5, warmup_max=4, schedule="linear", lr_min=0.0)
    rates = [lr_at(config, done, 12) for done in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == pytest.approx([1 - i / 8 for i in range(1, 8)])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
def test_every_optimizer_has_a_state_rule_and_sets_its_learning_rate(name):
    module = nn.Linear(3, 2)
    optimizer = make_optimizer(OptimizerConfig(name=name), module)
    assert type(optimizer) in RULES
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]


def test_matrices_alone_decay_and_a_tied_one_is_held_once():
    module = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "norm": nn.LayerNorm(3)})
    module["b"].weight = module["a"].weight
    config = OptimizerConfig(name="adamw", weight_decay=0.1, decay="matrices")
    decayed, rest = make_optimizer(config, module).param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert [p.ndim for p in decayed["params"]] == [2]
    assert [p.ndim for p in rest["params"]] == [1, 1, 1, 1]


def test_the_gradient_is_clipped_only_if_asked():
    weight = nn.Parameter(torch.zeros(4))
    for bound, expected in ((None, 6.0), (1.5, 1.5)):
        weight.grad = torch.full((4,), 3.0)
        clip(OptimizerConfig(clip_norm=bound), [weight])
        assert float(weight.grad.norm()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "lion"}, "optimizer.name = 'lion'"),
        ({"lr": 0.0}, "optimizer.lr = 0.0"),
        ({"betas": [0.9]}, "two numbers"),
        ({"betas": [0.9, 1.0]}, "optimizer.betas = 1.0"),
        ({"schedule": "step"}, "milestones"),
        ({"milestones": [0.5]}, "schedule: step"),
        ({"warmup": 1.5}, "optimizer.warmup = 1.5"),
        ({"warmup_max": 0}, "optimizer.warmup_max = 0"),
        ({"clip_norm": 0.0}, "optimizer.clip_norm = 0.0"),
        ({"lr_min": 1.0}, "at most lr = 0.001"),
        ({"momentum": 0.9}, "sgd and rmsprop"),
    ],
)
def test_bad_values_are_named(changes, words):
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        dataclasses.replace(OptimizerConfig(), **changes).check()
