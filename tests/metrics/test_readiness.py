"""Optimization readiness beside its definitions, the bound it stands for, and a loop of a run."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.metrics import readiness
from rlplast.metrics.probe import RunMetrics
from rlplast.metrics.readiness import optimization_readiness
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import small_run
from tests.naive import readiness as naive

SAMPLES, SIZE = 6, 2


class Regression:
    """Least squares of a few samples; its gradients in closed form, for every small batch."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        draw = [torch.randn(s, generator=generator, dtype=torch.float64) for s in (SAMPLES * 3, 9)]
        self.x, self.y, self.w = draw[0].view(SAMPLES, 3), draw[1][:SAMPLES], draw[1][SAMPLES:]
        self.batches = [list(own) for own in itertools.combinations(range(SAMPLES), SIZE)]

    def loss(self, w: Tensor) -> Tensor:
        return (self.x @ w - self.y).square().mean() / 2

    def gradient(self, own: list[int]) -> Tensor:
        return (self.x[own] @ self.w - self.y[own]) @ self.x[own] / len(own)

    def readiness(self) -> tuple[Tensor, Tensor, Tensor]:
        g = self.gradient(list(range(SAMPLES)))
        small = torch.stack([self.gradient(own) for own in self.batches])
        norms = small.norm(dim=1)
        return g, small, optimization_readiness(self.loss(self.w), g.norm(), norms)


def test_it_is_strength_times_reliability_and_bounds_the_mean_gain_of_a_step() -> None:
    for seed in range(3):
        case = Regression(seed)
        g, small, found = case.readiness()
        loss, reliability = case.loss(case.w), naive.reliability(g.tolist(), small.tolist())
        expected = naive.strength(float(loss), g.tolist()) * reliability
        assert float(found) == pytest.approx(expected)
        smooth = float(torch.linalg.eigvalsh(case.x.mT @ case.x / SAMPLES)[-1])
        # Theorem 4.6: a step of size αR/β lowers the loss by at least α(1 − α)/β of it.
        for share in (0.2, 0.5, 0.8):
            step = share * reliability / smooth
            after = torch.stack([case.loss(case.w - step * one) for one in small]).mean()
            gain = float((loss - after) / loss)
            assert gain >= share * (1 - share) / smooth * float(found) > 0


def test_a_few_by_hand() -> None:
    cases: list[tuple[float, float, list[float], float]] = [
        (2, 2, [2, 2], 2),  # batches that agree: the strength
        (2, 1, [1, 3], 0.1),
        (0, 0, [0, 0], 0),
        (1, 0, [0, 0], 0),
        (0, 0, [1, 1], 0),
        (-1, 1, [1, 1], math.nan),
        (1, math.nan, [1, 1], math.nan),
        (1, 1, [1, math.inf], 0),
        (0, math.nan, [1, 1], math.nan),
    ]
    for *values, expected in cases:
        of = (torch.tensor(value, dtype=torch.float32) for value in values)
        assert float(optimization_readiness(*of)) == pytest.approx(expected, nan_ok=True)


def test_a_run_reads_small_batches_and_the_probe_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "BATCHES", 3)
    made: Any = build_trainable(read_config(small_run("supervised", {}, hooks=[])))
    drawn, sample = [], made.sample
    monkeypatch.setattr(made, "sample", lambda size, n: drawn.append(sample(size, n)) or drawn[-1])
    found = RunMetrics(["optimization_readiness"], 16)(made, 5)
    assert [len(one.y) for one in drawn] == [16, 4, 4, 4]

    def loss_and_norm(one: Any) -> tuple[float, float]:
        made.model.zero_grad(set_to_none=True)
        loss = made.objective.loss(made.model(made.normalise(one.pixels())), one.y)
        loss.backward()
        norms = [p.grad.double().norm() for p in made.model.parameters()]
        return float(loss.detach()), float(torch.stack(norms).norm())

    made.model.eval()
    (loss, norm), *small = map(loss_and_norm, drawn)
    expected = norm**4 / (loss * sum(own**2 for _, own in small) / 3)
    assert found == {"metric/optimization_readiness/model": pytest.approx(expected, rel=1e-5)}
    assert len({own for _, own in small}) == 3  # drawn apart
