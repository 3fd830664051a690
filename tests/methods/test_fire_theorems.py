"""Theorems 1 to 4 of the FIRE paper and their corollaries as properties, under their conditions.

The paper multiplies from the left, Z W; its W is the transpose of a torch weight, and its
deviation from isometry is this library's `dfi`. Nothing here has biases.
"""

import math
from itertools import accumulate, combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rlplast
from rlplast.metrics.features import feature_covariance_distance
from rlplast.metrics.ranks import srank
from rlplast.metrics.weights import dfi, sfe
from tests.methods.nets import normal, randomise

ACTIVATIONS = [torch.relu, torch.tanh, torch.abs, nn.functional.leaky_relu]  # all 1-Lipschitz

seeds = st.integers(0, 2**31)


def features(weights: list[Tensor], obs: Tensor, activation) -> list[Tensor]:
    return list(accumulate(weights, lambda h, w: activation(h @ w.T), initial=obs))[1:]


@given(std=st.floats(0.05, 2), polynomial=st.sampled_from(["cubic", "exact"]), seed=seeds)
@settings(max_examples=6)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_squared_error_bounds_how_far_fire_moves_the_feature_covariance(
    activation, std: float, polynomial: str, seed: int
) -> None:
    layers = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in ((5, 7), (7, 6), (6, 4))])
    randomise(layers, seed, std).double()
    obs = normal(9, 5, seed=seed + 1)
    before = [p.detach().clone() for p in layers.parameters()]
    rlplast.fire(layers, polynomial=polynomial)
    after = [p.detach() for p in layers.parameters()]
    pairs = zip(before, after, strict=True)
    norms = [max(float(torch.linalg.matrix_norm(w, 2)) for w in pair) for pair in pairs]
    outputs = zip(features(before, obs, activation), features(after, obs, activation), strict=True)
    for depth, (old, new) in enumerate(outputs, start=1):
        smallest = min(float(old.norm()), float(new.norm()))
        moved = sum(float(sfe(n, o)) for n, o in zip(after[:depth], before[:depth], strict=True))
        spread = math.sqrt(sum(1 / b**2 for b in norms[:depth]))
        bound = 4 * float(obs.norm()) / smallest * math.prod(norms[:depth]) * spread
        distance = float(feature_covariance_distance(new, old))
        assert distance <= bound * math.sqrt(moved) * (1 + 1e-9)


@given(std=st.floats(0.1, 1.5), seed=seeds)
@settings(max_examples=5)
@pytest.mark.parametrize("sizes", [(3, 4, 2), (4, 3, 3, 2)])
@pytest.mark.parametrize("residual", [0.0, 0.01, 1.0])
def test_hessian_norm_is_bounded_by_the_deviations_from_isometry(
    residual: float, sizes: tuple[int, ...], std: float, seed: int
) -> None:
    """Whitened inputs, gates that are the same for every sample, half the squared error (β = 1).

    Corollary 1 is the bound at interpolation, where γ = 0 leaves its first sum.
    """
    pairs = list(pairwise(sizes))
    weights = [std * normal(b, a, seed=seed + i) for i, (a, b) in enumerate(pairs)]
    gates = [(normal(b, seed=seed + 7) > -0.5).double() for _, b in pairs[:-1]]
    gates.append(torch.ones(sizes[-1], dtype=torch.float64))
    samples = 8
    obs = math.sqrt(samples) * torch.linalg.qr(normal(samples, sizes[0], seed=seed + 8)).Q
    noise = normal(samples, sizes[-1], seed=seed + 9)

    def output(flat: Tensor) -> Tensor:
        out, start = obs, 0
        for (a, b), gate in zip(pairs, gates, strict=True):
            out = (out @ flat[start : start + a * b].reshape(b, a).T) * gate
            start += a * b
        return out

    flat = torch.cat([weight.flatten() for weight in weights])
    target = output(flat) + residual * noise

    def loss(flat: Tensor) -> Tensor:
        return 0.5 * (output(flat) - target).square().sum(1).mean()

    hessian = torch.autograd.functional.hessian(loss, flat)
    assert isinstance(hessian, Tensor)
    gamma = float((output(flat) - target).norm(dim=1).max())
    assert (gamma == 0) == (residual == 0)
    nu = [1 + math.sqrt(float(dfi(weight))) for weight in weights]
    first, second = (sum(map(math.prod, combinations(nu, len(nu) - k))) for k in (1, 2))
    bound = first + 2 * gamma * second
    assert float(torch.linalg.matrix_norm(hessian, 2)) <= bound * (1 + 1e-9)


def nearly_isometric(d_out: int, d_in: int, gap: float, seed: int) -> Tensor:
    """A weight with d_out ≤ d_in and dfi = gap² < 1."""
    orthogonal = torch.linalg.qr(normal(d_in, d_out, seed=seed)).Q.T
    direction = normal(d_out, d_out, seed=seed + 1)
    direction = (direction + direction.T) / (direction + direction.T).norm()
    values, vectors = torch.linalg.eigh(torch.eye(d_out, dtype=torch.float64) + gap * direction)
    return vectors @ torch.diag(values.sqrt()) @ vectors.T @ orthogonal


gaps = st.floats(0, 0.99)


@given(gap=gaps, seed=seeds, d_out=st.integers(1, 8), delta=st.sampled_from([0.01, 0.1, 0.5]))
@settings(max_examples=40)
def test_rank_of_features_is_bounded_by_the_deviation_from_isometry(
    gap: float, seed: int, d_out: int, delta: float
) -> None:
    weight = nearly_isometric(d_out, 8, gap, seed)
    epsilon = math.sqrt(float(dfi(weight)))
    assert epsilon == pytest.approx(gap, abs=1e-6)
    rho = math.sqrt((1 + epsilon) / (1 - epsilon))
    inputs = normal(20, 8, seed=seed + 2)
    # The orthogonal factor of the polar decomposition, from an SVD.
    u, _, vh = torch.linalg.svd(weight.T, full_matrices=False)
    eta = torch.linalg.eigvalsh((u @ vh).T @ (inputs.T @ inputs / 20) @ (u @ vh))
    whitened = math.sqrt(20) * torch.linalg.qr(inputs).Q
    for obs, spread in ((inputs, math.sqrt(float(eta.max() / eta.min()))), (whitened, 1.0)):
        bound = (1 - delta) * d_out / (delta * rho * spread + 1 - delta)
        assert float(srank(obs @ weight.T, delta=delta)) >= math.ceil(bound - 1e-9)


@given(gap=gaps, seed=seeds, d_out=st.integers(2, 8))
@settings(max_examples=40)
def test_no_unit_is_dormant_below_the_deviation_of_corollary_two(
    gap: float, seed: int, d_out: int
) -> None:
    """Gaussian inputs and a positive-homogeneous activation: s_j = ‖w_j‖ / mean ‖w‖."""
    weight = nearly_isometric(d_out, 8, gap, seed)
    epsilon = math.sqrt(float(dfi(weight)))
    scores = weight.norm(dim=1) / weight.norm(dim=1).mean()
    low, high = math.sqrt((1 - epsilon) / (1 + epsilon)), math.sqrt((1 + epsilon) / (1 - epsilon))
    assert low - 1e-9 <= float(scores.min()) <= float(scores.max()) <= high + 1e-9
    assert float(dfi(weight)) < 0.9975
    assert float(scores.min()) > 0.025


def test_dormancy_scores_on_gaussian_inputs_are_relative_row_norms() -> None:
    weight = nearly_isometric(4, 6, 0.9, seed=1)
    outputs = torch.relu(normal(200_000, 6, seed=2) @ weight.T).mean(0)
    measured, expected = outputs / outputs.mean(), weight.norm(dim=1) / weight.norm(dim=1).mean()
    torch.testing.assert_close(measured, expected, rtol=0.02, atol=0)
