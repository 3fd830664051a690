"""Ranks of a matrix against known spectra and the printed definitions."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.metrics import ranks
from tests.methods.nets import normal

RANK_METRICS = (ranks.spectral_norm, ranks.srank, ranks.effective_rank, ranks.stable_rank)


def rotated(sigma: list[float], d_out: int, d_in: int, seed: int = 0) -> Tensor:
    """A d_out x d_in matrix with exactly these singular values (the rest 0)."""
    u = torch.linalg.qr(normal(d_out, d_out, seed=seed)).Q[:, : len(sigma)]
    v = torch.linalg.qr(normal(d_in, d_in, seed=seed + 1)).Q[:, : len(sigma)]
    return u @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ v.T


def srank_by_loop(sigma: list[float], delta: float) -> int:
    kept = 0.0
    for k, value in enumerate(sorted(sigma, reverse=True), start=1):
        kept += value
        if kept / sum(sigma) >= 1 - delta:
            return k
    raise AssertionError("unreachable")


@pytest.mark.parametrize("d_out_d_in", [(8, 8), (20, 8), (8, 20)])
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5])
def test_ranks_of_a_known_spectrum_are_closed_forms(
    d_out_d_in: tuple[int, int], delta: float
) -> None:
    sigma = [10.0, 5.0, 2.0, 1.0, 0.3, 0.1, 0.05, 0.01]
    matrix = rotated(sigma, *d_out_d_in)
    share = np.array(sigma) / sum(sigma)
    assert ranks.srank(matrix, delta=delta).item() == srank_by_loop(sigma, delta)
    assert ranks.effective_rank(matrix).item() == pytest.approx(
        math.exp(-(share * np.log(share)).sum()), rel=1e-12
    )
    squares = sum(value**2 for value in sigma)
    assert ranks.stable_rank(matrix).item() == pytest.approx(squares / 100, rel=1e-12)
    assert ranks.spectral_norm(matrix).item() == pytest.approx(10, rel=1e-13)


def test_ranks_of_equal_singular_values_are_exact() -> None:
    for side in (1, 7, 100, 200, 300):
        for factor in (1.0, 0.1, 3e-20):
            identity = factor * torch.eye(side, dtype=torch.float64)
            assert ranks.srank(identity).item() == math.ceil(0.99 * side)
            assert ranks.effective_rank(identity).item() == pytest.approx(side, rel=1e-12)
            assert ranks.stable_rank(identity).item() == pytest.approx(side, rel=1e-12)
            assert ranks.spectral_norm(identity).item() == pytest.approx(factor, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rank_of_a_rank_one_matrix_is_one(dtype: torch.dtype) -> None:
    matrix = torch.outer(normal(30, seed=1, dtype=dtype), normal(20, seed=2, dtype=dtype))
    for metric in (ranks.srank, ranks.effective_rank, ranks.stable_rank):
        assert metric(matrix).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("metric", RANK_METRICS)
def test_ranks_are_zero_for_a_zero_matrix_and_nan_for_a_broken_one(metric) -> None:
    assert metric(torch.zeros(4, 3)).item() == 0
    for bad in (math.nan, math.inf):
        assert math.isnan(metric(torch.tensor([[1.0, bad], [0.0, 1.0]])).item())


@pytest.mark.parametrize("metric", RANK_METRICS)
def test_ranks_of_a_conv_weight_are_those_of_its_flattened_matrix(metric) -> None:
    weight = normal(6, 4, 3, 2, seed=5)
    matrix = torch.from_numpy(weight.numpy().reshape(6, 24))
    assert metric(weight).item() == pytest.approx(metric(matrix).item(), rel=1e-14)
    with pytest.raises(ConfigError, match="at least 2 dimensions"):
        metric(torch.ones(3))
