"""UPGD beside three weights by hand, and beside its algorithm in plain numbers."""

import pytest
import torch
from torch import nn

from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from rlplast.optimizers.upgd import UPGD
from tests.naive.optimizers import NaiveUPGD
from tests.optimizers.drives import drive, weights

SIGMA_1 = 0.2689414213699951  # 1 − σ(1)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def updated(optimizer: UPGD, *gradients: list[float]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.tensor(g, dtype=p.dtype)
    optimizer.step()


def test_weights_by_hand():
    # û = −g·θ = 2, 0, −1 and η = 2: gates 1 − σ(1), ½, 1 − σ(−½)
    theta = parameter(1.0, 3.0, 1.0)
    updated(UPGD([theta], lr=0.5, beta=0.9, sigma=0.0), [-2.0, 0.0, 1.0])
    expected = [1 + 0.5 * 2 * SIGMA_1, 3.0, 1 - 0.5 * 0.6224593312018546]
    assert theta.tolist() == pytest.approx(expected, rel=1e-12)
    # with η < 0 the formula would let the least useful weight move least: all move at a half
    for start in (0.0, -1.0):
        p = parameter(start, 2 * start)
        updated(UPGD([p], lr=1.0, beta=0.0, sigma=0.0), [-1.0, -1.0])
        assert p.tolist() == [start + 0.5, 2 * start + 0.5]


def test_the_maximum_is_of_all_tensors_and_groups():
    # alone the second weight would be its own maximum, and move at 1 − σ(1)
    first, second = parameter(1.0), parameter(1.0)
    optimizer = UPGD([{"params": [second]}, {"params": [first]}], lr=1.0, beta=0.0, sigma=0.0)
    updated(optimizer, [-1.0], [-4.0])
    assert first.item() == pytest.approx(1 + 4 * SIGMA_1, rel=1e-12)
    assert second.item() == pytest.approx(1 + 1 * (1 - torch.sigmoid(torch.tensor(0.25)).item()))


def test_a_weight_that_is_updated_for_the_first_time_is_as_useful_as_an_old_one():
    first, second = parameter(1.0), parameter(1.0)
    optimizer = UPGD([first, second], lr=0.0, beta=0.9, sigma=0.0)
    first.grad = torch.full_like(first, -1.0)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 1.0
    updated(optimizer, [-1.0], [-1.0])
    assert [first.item(), second.item()] == pytest.approx([1 + SIGMA_1] * 2, rel=1e-12)


class Noise:
    """What an optimizer draws, read off a twin whose weights are all zero and have no gradient.

    There û = 0, so every weight moves by −lr·ξ/2, and decay has nothing to take.
    """

    def __init__(self, shapes: list[tuple[int, ...]], sigma: float) -> None:
        self.params = [nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
        self.optimizer = UPGD(self.params, lr=2.0, sigma=sigma, seed=5)

    def draw(self) -> list[float]:
        for p in self.params:
            p.data.zero_()
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        return [-x for p in self.params for x in p.flatten().tolist()]


def test_updates_are_the_papers():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (4,)]
    drawn = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    module = nn.ParameterList(drawn)
    noise = Noise(shapes, sigma=0.3)
    ours = UPGD(module.parameters(), lr=0.1, beta=0.9, sigma=0.3, weight_decay=0.2, seed=5)
    theirs = NaiveUPGD(beta=0.9, lr=0.1, weight_decay=0.2)
    expected = weights(module).tolist()
    for number in range(6):
        drive(module, ours, updates=1, seed=number, mean=0.0)
        gradients = torch.cat([p.grad.flatten() for p in module]).tolist()
        expected = theirs.step(expected, gradients, noise.draw())
        assert weights(module).tolist() == pytest.approx(expected, rel=1e-9)


def test_noise_is_normal_of_its_own_stream_and_new_at_every_update():
    before = torch.get_rng_state()
    noise = Noise([(100, 100)], sigma=0.3)
    first, second = (torch.tensor(noise.draw()) for _ in "ab")
    assert torch.equal(torch.get_rng_state(), before)
    for draw in (first, second):
        assert abs(float(draw.mean())) < 0.01 and float(draw.std()) == pytest.approx(0.3, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05


def test_noise_is_of_the_runs_seed():
    found = []
    for seed in (0, 1, 1):
        module = nn.Linear(3, 2)
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
        updater = Updater(OptimizerConfig("upgd", params={"sigma": 0.1}), module, seed)
        updater.minimise(module(torch.ones(4, 3)).square().sum())
        found.append(weights(module))
    assert not torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])
