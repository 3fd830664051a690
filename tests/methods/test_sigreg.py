"""sigreg beside a slow twin and closed forms."""

import math

import pytest
import torch
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.rng import derive_seed
from rlplast.methods.sigreg import distance_to_normal
from tests.methods.driven import Driven, assert_close, gradients
from tests.models import FAMILIES
from tests.naive import features as naive

PARAMS = {"coef": 0.7, "slices": 3}
SEED = derive_seed(0, "penalty", "sigreg", "net")
# What gives the features before the last nonlinearity; else the head reads no hidden units.
GIVEN = {"mlp": "2", "conv": "2", "conv_batchnorm": "4", "stacked": "fc2"}


def made(family: str, seed: int = 0, updates: int = 0) -> Driven:
    termed = Driven(family, penalty={"method": "sigreg", "params": PARAMS}, seed=seed).move()
    termed.penalties.clock = Clock(updates=updates)
    return termed


def twin(termed: Driven, family: str, update: int = 0) -> Tensor:
    if family in GIVEN:
        [features] = naive.given_by(termed.module, [GIVEN[family]], termed.x)
    else:
        features = naive.last_features(termed.module, termed.x)
    if family in ("conv", "conv_batchnorm"):
        features = features.flatten(1)
    apart = list(features) if family == "stacked" else [features.flatten(0, -2)]
    rest = {**PARAMS, "seed": SEED, "update": update}
    return torch.stack([naive.isotropic(each, **rest) for each in apart]).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient_are_the_twins(family: str) -> None:
    termed = made(family)
    torch.testing.assert_close(termed.term(), twin(termed, family), rtol=1e-4, atol=1e-6)
    assert_close(
        termed.gradients(), gradients(termed.module, twin(termed, family)), rtol=1e-3, atol=1e-5
    )


def test_the_distance_has_closed_forms() -> None:
    t = [-5 + 10 * k / 7 for k in range(8)]
    away = torch.eye(3, dtype=torch.float64)
    zero = torch.zeros(2, 5, 3, dtype=torch.float64)  # φ = 1
    expected = sum((1 - math.exp(-(s**2) / 2)) ** 2 for s in t) / 8
    assert distance_to_normal(zero, away).tolist() == pytest.approx([expected] * 2)
    signs = torch.ones(2, 1, dtype=torch.float64) * torch.tensor([[2.0], [-2.0]])  # φ = cos 2t
    expected = sum((math.cos(2 * s) - math.exp(-(s**2) / 2)) ** 2 for s in t) / 8
    assert float(distance_to_normal(signs, away[:1, :1])) == pytest.approx(expected)
    moved = torch.full((4, 1), 0.5, dtype=torch.float64)  # φ = exp(it/2)
    expected = sum(1 - 2 * math.cos(s / 2) * math.exp(-(s**2) / 2) + math.exp(-(s**2)) for s in t)
    assert float(distance_to_normal(moved, away[:1, :1])) == pytest.approx(expected / 8)
    ladder = torch.special.ndtri((torch.arange(20_000).double() + 0.5) / 20_000)
    assert float(distance_to_normal(ladder.unsqueeze(1), away[:1, :1])) < 1e-8


def test_directions_are_of_the_seed_and_the_update() -> None:
    keys = ((0, 3), (0, 3), (0, 4), (1, 3))
    values = [float(made("mlp", seed, updates).term().detach()) for seed, updates in keys]
    assert values[0] == values[1] and len(set(values)) == 3
    assert values[2] == pytest.approx(float(twin(made("mlp"), "mlp", 4).detach()), rel=1e-4)
