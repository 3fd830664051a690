"""Curvature against dense Hessians from torch.func, and closed forms."""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from rlplast.core.errors import ConfigError
from rlplast.metrics import curvature
from rlplast.metrics.curvature import (
    Spectrum,
    hessian_max_eigenvalue,
    hessian_spectral_norm,
    hessian_spectrum,
    products,
)

cross_entropy = nn.functional.cross_entropy
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "square": lambda out, y: out.square().mean(),
    "steep": lambda out, y: cross_entropy(3 * out, y),
    "hill": lambda out, y: -out.square().mean(),  # its eigenvalue of largest size is negative
}


def net_loss(
    kind: str,
    sizes: Sequence[int] = (3, 4, 2),
    samples: int = 7,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """A loss of a small tanh network, its parameters and its dense Hessian in float64."""
    torch.default_generator.manual_seed(seed)
    layers = [m for pair in pairwise(sizes) for m in (nn.Linear(*pair), nn.Tanh())][:-1]
    net = nn.Sequential(*layers).double()
    own = copy.deepcopy(net).to(dtype)
    x = torch.randn(samples, sizes[0], dtype=torch.float64)
    y = torch.randint(sizes[-1], (samples,))
    names, params = zip(*net.named_parameters(), strict=True)

    def of(flat: Tensor) -> Tensor:
        split = flat.split([p.numel() for p in params])
        parts = [v.view(p.shape) for v, p in zip(split, params, strict=True)]
        return LOSSES[kind](functional_call(net, dict(zip(names, parts, strict=True)), (x,)), y)

    dense = jacrev(jacrev(of))(torch.cat([p.detach().flatten() for p in params]))
    return LOSSES[kind](own(x.to(dtype)), y), list(own.parameters()), dense


both_losses = pytest.mark.parametrize("kind", ["cross_entropy", "hill"])


@both_losses
def test_products_are_those_of_the_dense_hessian(kind: str) -> None:
    loss, params, dense = net_loss(kind)
    product, generator = products(loss, params), torch.Generator().manual_seed(0)
    for _ in range(3):
        vector = torch.randn(len(dense), generator=generator, dtype=torch.float64)
        torch.testing.assert_close(product(vector), dense @ vector)
    table, found = torch.randn(4, 2, generator=generator, dtype=torch.float64), []
    for sparse in (False, True):
        embedding = nn.Embedding.from_pretrained(table.clone(), freeze=False, sparse=sparse)
        loss = embedding(torch.tensor([1, 2, 2])).pow(4).sum()
        found.append(products(loss, [embedding.weight])(torch.arange(8.0, dtype=torch.float64)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_of_twelve_networks_the_defaults_are_right_to_a_thousandth(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0

    def counted(product: curvature.Product) -> curvature.Product:
        def count(vector: Tensor) -> Tensor:
            nonlocal done
            done += 1
            return product(vector)

        return count

    for number in range(12):
        sizes = [5, *[(4, 8, 12)[number % 3]] * (2 + number % 2), 3]
        loss, params, dense = net_loss(list(LOSSES)[number % 4], sizes, 40, number, dtype)
        values = torch.linalg.eigvalsh(dense)
        product = counted(products(loss, params))
        with monkeypatch.context() as patch:
            patch.setattr(curvature, "products", lambda *_, own=product: own)
            for function, exact in (
                (hessian_max_eigenvalue, values.max()),
                (hessian_spectral_norm, values.abs().max()),
            ):
                done = 0
                found = function(loss, params)
                assert float(found) == pytest.approx(float(exact), rel=1e-3)
                assert found.dtype == torch.float64 and done <= 20


def test_what_is_not_finite_is_no_number_and_no_steps_are_refused() -> None:
    x = torch.tensor([torch.inf, 1.0], requires_grad=True)
    assert hessian_max_eigenvalue(x.square().square().sum(), [x]).isnan()
    assert hessian_spectral_norm(x.square().square().sum(), [x]).isnan()
    for function in (hessian_max_eigenvalue, hessian_spectral_norm, hessian_spectrum):
        with pytest.raises(ConfigError, match="steps = 0"):
            function(x.square().sum(), [x], steps=0)


def test_a_linear_loss_has_no_curvature_and_nothing_moves() -> None:
    weight = torch.ones(4, requires_grad=True)
    unused = torch.ones(2, requires_grad=True)
    state = torch.get_rng_state()
    assert float(hessian_max_eigenvalue((2 * weight).sum(), [weight, unused])) == 0
    spectrum = hessian_spectrum((2 * weight).sum(), [weight, unused])
    assert (spectrum.nodes == 0).all()
    assert weight.grad is None and unused.grad is None
    assert torch.equal(torch.get_rng_state(), state)


@both_losses
def test_lanczos_with_all_steps_has_the_numbers_of_the_dense_hessian(kind: str) -> None:
    loss, params, dense = net_loss(kind)
    values, n = torch.linalg.eigvalsh(dense), len(dense)
    one = hessian_spectrum(loss, params, probes=1, steps=n)
    for node, weight in zip(one.nodes, one.weights, strict=True):
        assert weight < 1e-9 or float((values - node).abs().min()) < 1e-8
    found = one.summary()  # what a run would log; of more probes: test_density.py
    assert float(found["min"]) == pytest.approx(float(values[0]), abs=1e-8)
    assert float(found["max"]) == pytest.approx(float(values[-1]), abs=1e-8)


def test_summary_is_that_of_the_point_masses() -> None:
    nodes = torch.tensor([-2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    weights = torch.tensor([0.15, 0.5, 0.25, 0.1], dtype=torch.float64)
    found = {name: float(v) for name, v in Spectrum(nodes, weights).summary().items()}
    share = 0.15 * 2 / (0.15 * 2 + 0.25 * 1 + 0.1 * 3)  # |λ|: 0 (50%), 1 (75%), 2 (90%), 3
    assert found == pytest.approx({"min": -2, "max": 3, "abs_q90": 2, "negative_share": share})
    zeros = Spectrum(torch.zeros(2, dtype=torch.float64), torch.full((2,), 0.5)).summary()
    assert all(float(value) == 0 for value in zeros.values())
