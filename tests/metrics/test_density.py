"""Densities against NumPy's histogram, dense Hessians and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.metrics.curvature import Spectrum
from rlplast.metrics.density import Density, activation_histogram, hessian_density, smoothed
from tests.metrics.test_curvature import both_losses, net_loss


def centres(density: Density) -> Tensor:
    edges = torch.linspace(float(density.low), float(density.high), len(density.values) + 1)
    return (edges[1:].double() + edges[:-1].double()) / 2


def width(density: Density) -> float:
    return float(density.high - density.low) / len(density.values)


def moment(density: Density, power: int) -> float:
    return float((centres(density) ** power * density.values).sum() * width(density))


def test_histograms_are_numpys_and_of_equal_or_not_finite_activations() -> None:
    generator = torch.Generator().manual_seed(5)
    layers = {
        "conv": torch.randn(4, 3, 2, 2, generator=generator).tanh(),
        "fc": torch.randn(4, 9, generator=generator),
    }
    every = torch.cat([layer.flatten() for layer in layers.values()]).double().numpy()
    for cells in (1, 7, 50):
        found = activation_histogram(layers, cells=cells)
        expected, edges = np.histogram(every, cells, density=True)
        assert (float(found.low), float(found.high)) == (edges[0], edges[-1])
        np.testing.assert_allclose(found.values.numpy(), expected)
    found = activation_histogram({"fc": torch.full((3, 2), 2.0)}, cells=4)
    assert (float(found.low), float(found.high)) == (1.5, 2.5)
    assert found.values.tolist() == [0, 0, 4, 0]
    for bad in (math.nan, math.inf):
        found = activation_histogram({"fc": torch.tensor([[1.0, bad]])}, cells=3)
        assert all(value.isnan() for value in found.logged().values())
        assert list(found.logged()) == ["low", "high", "0", "1", "2"]
    with pytest.raises(ConfigError, match="no activations"):
        activation_histogram({})


@both_losses
def test_all_eigenvalues_and_probes_that_span_the_space_have_the_exact_moments(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, params, dense = net_loss(kind)
    values, n = torch.linalg.eigvalsh(dense), len(dense)
    size = float(values[-1] - values[0])
    whole = smoothed(Spectrum(values, torch.full((n,), 1 / n, dtype=torch.float64)))
    square = float((dense @ dense).trace()) / n + (0.005 * size) ** 2
    assert moment(whole, 2) == pytest.approx(square, abs=1e-5 * size**2)
    random = torch.randn(n, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    basis = torch.linalg.qr(random).Q
    monkeypatch.setattr("rlplast.metrics.curvature._start", lambda parameters, seed: basis[seed])
    for found in (whole, hessian_density(loss, params, probes=n, steps=5)):
        assert moment(found, 0) == pytest.approx(1, abs=1e-6)
        assert moment(found, 1) == pytest.approx(float(dense.trace()) / n, abs=1e-5 * size)


def test_equal_eigenvalues_are_one_bell() -> None:
    for value, sigma in ((-3.0, 0.015), (0.0, 0.005)):
        own = torch.full((4,), value, dtype=torch.float64)
        found = smoothed(Spectrum(own, torch.full((4,), 0.25, dtype=torch.float64)))
        ends = (value - 6 * sigma, value + 6 * sigma)
        assert (float(found.low), float(found.high)) == pytest.approx(ends)
        assert moment(found, 0) == pytest.approx(1, abs=1e-6)
    weight = torch.ones(3, requires_grad=True)
    flat = hessian_density((2 * weight).sum(), [weight])
    assert moment(flat, 0) == pytest.approx(1, abs=1e-6)
