"""Densities against NumPy's histogram, dense Hessians and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.metrics.curvature import Spectrum, hessian_spectrum, products
from rlplast.metrics.density import Density, activation_histogram, hessian_density, smoothed
from tests.metrics.test_curvature import both_losses, net_loss


def centres(density: Density) -> Tensor:
    edges = torch.linspace(float(density.low), float(density.high), len(density.values) + 1)
    return (edges[1:].double() + edges[:-1].double()) / 2


def width(density: Density) -> float:
    return float(density.high - density.low) / len(density.values)


def moment(density: Density, power: int) -> float:
    return float((centres(density) ** power * density.values).sum() * width(density))


@pytest.mark.parametrize("cells", [1, 7, 50])
def test_a_histogram_is_numpys(cells: int) -> None:
    generator = torch.Generator().manual_seed(5)
    layers = {
        "conv": torch.randn(4, 3, 2, 2, generator=generator).tanh(),
        "fc": torch.randn(4, 9, generator=generator),
    }
    found = activation_histogram(layers, cells=cells)
    every = torch.cat([layer.flatten() for layer in layers.values()]).double().numpy()
    expected, edges = np.histogram(every, cells, density=True)
    assert (float(found.low), float(found.high)) == (edges[0], edges[-1])
    np.testing.assert_allclose(found.values.numpy(), expected)


def test_histograms_of_equal_of_no_and_of_not_finite_activations() -> None:
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
def test_the_density_of_all_eigenvalues_has_their_moments(kind: str) -> None:
    _, _, dense = net_loss(kind)
    values, n = torch.linalg.eigvalsh(dense), len(dense)
    found = smoothed(Spectrum(values, torch.full((n,), 1 / n, dtype=torch.float64)))
    size = float(values[-1] - values[0])
    assert moment(found, 0) == pytest.approx(1, abs=1e-6)
    assert moment(found, 1) == pytest.approx(float(dense.trace()) / n, abs=1e-5 * size)
    square = float((dense @ dense).trace()) / n + (0.005 * size) ** 2
    assert moment(found, 2) == pytest.approx(square, abs=1e-5 * size**2)


@both_losses
def test_probes_that_span_the_space_have_the_exact_trace(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, params, dense = net_loss(kind)
    n = len(dense)
    random = torch.randn(n, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    basis = torch.linalg.qr(random).Q
    monkeypatch.setattr("rlplast.metrics.curvature._start", lambda parameters, seed: basis[seed])
    found = hessian_density(loss, params, probes=n, steps=5)
    size = float(found.high - found.low)
    assert moment(found, 0) == pytest.approx(1, abs=1e-6)
    assert moment(found, 1) == pytest.approx(float(dense.trace()) / n, abs=1e-5 * size)


def test_equal_eigenvalues_are_one_bell() -> None:
    for value, sigma in ((-3.0, 0.015), (0.0, 0.005)):
        own = torch.full((4,), value, dtype=torch.float64)
        found = smoothed(Spectrum(own, torch.full((4,), 0.25, dtype=torch.float64)))
        assert (float(found.low), float(found.high)) == pytest.approx(
            (value - 6 * sigma, value + 6 * sigma)
        )
        assert moment(found, 0) == pytest.approx(1, abs=1e-6)
    weight = torch.ones(3, requires_grad=True)
    assert (products((2 * weight).sum(), [weight])(torch.ones(3)) == 0).all()
    flat = hessian_density((2 * weight).sum(), [weight])
    assert moment(flat, 0) == pytest.approx(1, abs=1e-6)


def test_a_density_is_that_of_the_spectrum_of_the_same_seed() -> None:
    loss, params, _ = net_loss("hill")
    found = hessian_density(loss, params, probes=3, steps=6, seed=4)
    expected = smoothed(hessian_spectrum(loss, params, probes=3, steps=6, seed=4))
    assert torch.equal(found.values, expected.values)
    other = hessian_density(loss, params, probes=3, steps=6, seed=5)
    assert not torch.equal(found.values, other.values)
