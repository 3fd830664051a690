"""Metrics of outputs beside closed forms, finite differences and loops over samples."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.metrics.balance import lipschitz_bound
from rlplast.metrics.outputs import (
    NotedInputs,
    churn,
    churn_argmax,
    churn_size,
    gradient_covariance,
    gradient_rows,
    input_jacobians,
    lipschitz_estimate,
    ntk_effective_rank,
    ntk_srank,
)
from tests.methods.nets import normal


def net(seed: int = 0) -> nn.Sequential:
    torch.default_generator.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def exp_entropy(values: list[float]) -> float:
    shares = [v / sum(values) for v in values if v > 1e-12]
    return math.exp(-sum(s * math.log(s) for s in shares))


def test_the_kernel_of_a_linear_model_is_that_of_its_inputs() -> None:
    x = normal(5, 3)
    model = nn.Linear(3, 1, bias=False).double()
    rows = gradient_rows((model(one).sum() for one in x), list(model.parameters()))
    torch.testing.assert_close(rows @ rows.mT, x @ x.mT)
    values = torch.linalg.eigvalsh(x @ x.mT).tolist()
    assert float(ntk_effective_rank(rows)) == pytest.approx(exp_entropy(values))
    largest, total = sorted(values, reverse=True), sum(values)
    needed = next(k for k in range(1, 6) if sum(largest[:k]) >= 0.99 * total)
    assert float(ntk_srank(rows)) == needed


def test_equal_samples_count_once() -> None:
    for copies in (1, 4):
        rows = torch.eye(3, 7, dtype=torch.float64).repeat(copies, 1)
        assert float(ntk_effective_rank(rows)) == pytest.approx(3)
        assert float(ntk_srank(rows)) == 3
    assert float(ntk_effective_rank(torch.zeros(4, 7))) == 0


def test_rows_are_gradients_sample_by_sample_with_zeros_where_nothing_is_read() -> None:
    model, x, unused = net(), normal(4, 4), nn.Parameter(torch.ones(2, dtype=torch.float64))
    parameters = [*model.parameters(), unused]
    rows = gradient_rows((model(one).sum() for one in x), parameters)
    assert rows.shape == (4, sum(p.numel() for p in parameters))
    for row, one in zip(rows, x, strict=True):
        twin = copy.deepcopy(model)
        twin(one).sum().backward()
        alone = torch.cat([p.grad.flatten() for p in twin.parameters()])
        torch.testing.assert_close(row[:-2], alone)
    assert not rows[:, -2:].any()
    assert all(p.grad is None for p in parameters)
    table, found = normal(4, 2), []
    for sparse in (False, True):
        embedding = nn.Embedding.from_pretrained(table.clone(), freeze=False, sparse=sparse)
        values = (embedding(torch.tensor(rows)).square().sum() for rows in ([1, 1], [3]))
        found.append(gradient_rows(values, [embedding.weight]))
    torch.testing.assert_close(*found)


def test_covariance_is_the_mean_cosine_of_pairs() -> None:
    rows = normal(6, 9, seed=3)
    cosines = [
        float(torch.nn.functional.cosine_similarity(rows[i], rows[j], dim=0))
        for i in range(6)
        for j in range(6)
        if i != j
    ]
    assert float(gradient_covariance(rows)) == pytest.approx(sum(cosines) / 30)
    scaled = rows * torch.arange(1, 7)[:, None]
    assert float(gradient_covariance(scaled)) == pytest.approx(sum(cosines) / 30)
    cases: list[tuple[list[list[float]], float]] = [
        ([[1, 0], [0, 2], [0, 0]], 0),
        ([[1, 0], [1, 0], [-1, 0], [0, 0]], -1 / 3),
        ([[1, 2], [0, 0]], math.nan),  # fewer than two
    ]
    for few, expected in cases:
        found = float(gradient_covariance(torch.tensor(few)))
        assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)
    with pytest.raises(ConfigError, match="shape"):
        ntk_effective_rank(torch.ones(3))


def slopes(model: nn.Module, *x: Tensor) -> Tensor:
    noted = NotedInputs(model)
    return input_jacobians(noted(*x), noted.inputs)


@pytest.mark.parametrize("seed", range(3))
def test_of_a_chain_it_is_the_steepest_sample_and_below_the_bound(seed: int) -> None:
    model, x = net(seed), normal(7, 4, seed=seed)
    jacobians = torch.stack([torch.autograd.functional.jacobian(model, one) for one in x])
    torch.testing.assert_close(slopes(model, x), jacobians)
    steepest = max(float(torch.linalg.svdvals(one)[0]) for one in jacobians)
    found = float(lipschitz_estimate(jacobians))
    assert found == pytest.approx(steepest)
    assert found <= float(lipschitz_bound([m.weight.detach() for m in (model[0], model[2])]))


def test_several_inputs_count_together_and_bytes_are_numbers() -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return 3 * a.float().flatten(1).sum(1, keepdim=True) + 4 * b.sum(1, keepdim=True)

    frames = torch.zeros(2, 1, 1, dtype=torch.uint8)
    found = slopes(Sum(), frames, torch.zeros(2, 1))
    assert found.tolist() == [[[3.0, 4.0]]] * 2
    assert float(lipschitz_estimate(found)) == pytest.approx(5)
    noted = NotedInputs(nn.Embedding(4, 2))
    noted(torch.tensor([1, 2]))
    assert noted.inputs == []  # indices have no slope


def test_churn_by_hand() -> None:
    before = torch.tensor([[1.0, 2.0], [5.0, 3.0]])
    now = torch.tensor([[4.0, 2.0], [5.0, 2.0]])
    assert float(churn(now, before)) == (9 + 1) / 4
    assert float(churn_size(now, before)) == (3 + 1) / 4
    assert float(churn_argmax(now, before)) == 1 / 2
    for metric in (churn, churn_size, churn_argmax):
        assert float(metric(now, now)) == 0
