"""FIRE against a float64 twin, closed forms of its spectrum."""

import math
from collections.abc import Callable
from itertools import cycle, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights
from rlplast.methods.fire import orthogonalise
from tests.methods.nets import ConvNet, normal, randomise, relative_error, snapshot
from tests.naive.interventions import fire_twin

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "tall": lambda: nn.Linear(8, 24),
    "wide": lambda: nn.Linear(24, 8),
    "square": lambda: nn.Linear(12, 12),
    "nearly square": lambda: nn.Linear(9, 12),
    "1 x n": lambda: nn.Linear(7, 1),
    "n x 1": lambda: nn.Linear(1, 7),
    "1 x 1": lambda: nn.Linear(1, 1),
    "conv 8x8": lambda: nn.Conv2d(4, 8, 8),
    "conv 3x2": lambda: nn.Conv2d(6, 5, (3, 2)),
    "conv 1d": lambda: nn.Conv1d(3, 6, 4),
    "conv 3d": lambda: nn.Conv3d(3, 2, 2),
    "grouped": lambda: nn.Conv2d(8, 12, 3, groups=4),
    "depthwise": lambda: nn.Conv2d(6, 12, 3, groups=6),
    "channels last": lambda: nn.Conv2d(6, 5, 3).to(memory_format=torch.channels_last),  # type: ignore
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2**-8}


def make(layer: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    return randomise(LAYERS[layer](), seed).to(dtype)


def weight_of(module: nn.Module) -> Tensor:
    return module.get_parameter("weight").detach()


def groups_of(module: nn.Module) -> int:
    return getattr(module, "groups", 1)


def array(weight: Tensor) -> np.ndarray:
    return weight.detach().double().numpy().copy()


@torch.no_grad()
def make_deficient(module: nn.Module, how: str) -> None:
    """Give every matrix of the layer rank 1, a dead first row, or a dead first column."""
    weight = weight_of(module)
    if how == "rank one":
        rows = normal(weight.shape[0], *[1] * (weight.ndim - 1), seed=1).to(weight)
        columns = normal(1, *weight.shape[1:], seed=2).to(weight)
        weight.copy_(rows * columns)
    elif how == "dead row":
        weight[0] = 0
    else:
        weight[:, 0] = 0


def slices(weight: np.ndarray, groups: int = 1) -> list[np.ndarray]:
    return [
        part[(slice(None), slice(None), *position)]
        for part in np.split(weight, groups)
        for position in np.ndindex(*weight.shape[2:])
    ]


def scale_of(weight: np.ndarray, groups: int = 1) -> float:
    return math.sqrt(weight.shape[0] / groups / weight.shape[1]) / math.prod(weight.shape[2:])


def twin_error(module: nn.Module, iterations: int = 10, polynomial: str = "cubic") -> float:
    before = array(weight_of(module))
    rlplast.fire(module, iterations=iterations, polynomial=polynomial)
    expected = fire_twin(before, iterations, polynomial, groups_of(module))
    return relative_error(weight_of(module), expected)


def test_every_layout_and_number_of_iterations_matches_the_float64_twin() -> None:
    for layer, polynomial in product(LAYERS, ("cubic", "quintic", "exact")):
        for dtype, tolerance in TOLERANCE.items():
            error = twin_error(make(layer, dtype), polynomial=polynomial)
            assert error <= tolerance, (layer, polynomial, dtype)
    for layer, polynomial in product(("tall", "square", "conv 3x2"), ("cubic", "quintic")):
        for iterations in (1, 20):
            error = twin_error(make(layer, torch.float64), iterations, polynomial)
            assert error <= 1e-9, (layer, polynomial, iterations)
    factors = [(torch.float32, 1e-30), (torch.float32, 1e30)]
    factors += [(torch.float64, 1e-200), (torch.float64, 1e200)]  # whose squares are out of range
    for layer, (dtype, factor) in product(("tall", "square", "wide"), factors):
        module = make(layer, dtype)
        before = array(weight_of(module))
        weight_of(module).mul_(factor)
        rlplast.fire(module)
        error = relative_error(weight_of(module), fire_twin(before, 10, "cubic"))
        assert error <= TOLERANCE[dtype], (layer, factor)


@pytest.mark.parametrize("how", ["rank one", "dead row", "dead column"])
def test_rank_deficient_matrices_match_the_twin_and_exact_completes_them(how: str) -> None:
    for layer in ("tall", "wide", "square", "nearly square", "conv 8x8", "conv 3x2", "grouped"):
        for polynomial, dtype in product(("cubic", "quintic"), (torch.float32, torch.float64)):
            module = make(layer, dtype)
            make_deficient(module, how)
            error = twin_error(module, polynomial=polynomial)
            assert error <= TOLERANCE[dtype], (layer, polynomial, dtype)
        module = make(layer, torch.float64)
        make_deficient(module, how)
        before, groups = array(weight_of(module)), groups_of(module)
        rlplast.fire(module, polynomial="exact")
        after = array(weight_of(module)) / scale_of(before, groups)
        for old, new in zip(slices(before, groups), slices(after, groups), strict=True):
            gram = new @ new.T if new.shape[0] <= new.shape[1] else new.T @ new
            np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12, err_msg=layer)
            # Nearest: the inner product with W reaches the nuclear norm, its upper bound.
            nuclear = np.linalg.svd(old, compute_uv=False).sum()
            assert float((old * new).sum()) == pytest.approx(nuclear, rel=1e-12), layer


def spectrum(values: Tensor) -> Tensor:
    """Return a square float64 matrix with these singular values."""
    left, right = (torch.linalg.qr(normal(len(values), len(values), seed=s)).Q for s in (7, 8))
    return (left * values) @ right


def of_rank(n: int, rank: int) -> Tensor:
    return normal(n, rank, seed=3) @ normal(rank, n, seed=4)


def holes(n: int, every: int) -> Tensor:
    weight = normal(n, n, seed=5)
    weight[::every], weight[:, 1::every] = 0, 0
    return weight


HARD: dict[str, Callable[[int], Tensor]] = {
    "drawn": lambda n: normal(n, n),
    "not square": lambda n: normal(n, 2 * n // 3),
    "wide": lambda n: normal(n // 2, 2 * n),
    "wide and constant": lambda n: torch.full((n // 2, 2 * n), 0.1, dtype=torch.float64),
    "rank 1": lambda n: of_rank(n, 1),
    "rank n / 2": lambda n: of_rank(n, n // 2),
    "rank n - 1": lambda n: of_rank(n, n - 1),
    "dead rows and columns": lambda n: holes(n, 3),
    "one row": lambda n: normal(n, n) * torch.eye(n, dtype=torch.float64)[:, :1],
    "constant": lambda n: torch.full((n, n - 1), 0.1, dtype=torch.float64),
    "ill-conditioned": lambda n: spectrum(torch.logspace(0, -12, n, dtype=torch.float64)),
    "orthogonal": lambda n: spectrum(torch.ones(n, dtype=torch.float64)),
    "one giant value": lambda n: spectrum(torch.tensor([1e4] + [1.0] * (n - 1)).double()),
    "huge": lambda n: 1e34 * normal(n, n),
    "tiny": lambda n: 1e-36 * normal(n, n),
}


def deviation(weight: Tensor, iterations: int, polynomial: str) -> float:
    """Return how far, in spectral norm, float32 weights end from the same in float64."""
    weight = weight.float()[None]
    found = orthogonalise(weight, iterations, polynomial).double()
    expected = orthogonalise(weight.double(), iterations, polynomial)
    return torch.linalg.matrix_norm(found[0] - expected[0], 2).item()


def test_float32_ends_where_float64_does() -> None:
    for kind, n, polynomial in product(HARD, (3, 64, 160), ("cubic", "quintic")):
        for iterations in (5, 10, 20):
            found = deviation(HARD[kind](n), iterations, polynomial)
            assert found <= 1e-5 / 2, (kind, n, polynomial, iterations)
    for polynomial, iterations in product(("cubic", "quintic"), (40, 1000)):
        assert deviation(normal(48, 48), iterations, polynomial) <= 1e-5 / 3
    # Long sums of equal products are as exact.
    assert deviation(torch.ones(1055, 1055), 1, "cubic") <= 1e-5 / 3


@pytest.mark.slow
@pytest.mark.parametrize("polynomial", ["cubic", "quintic"])
def test_large_float32_ends_where_float64_does(polynomial: str) -> None:
    for kind, iterations in zip(HARD, cycle((5, 9, 10, 11, 20)), strict=False):
        for n in (256, 520):
            assert deviation(HARD[kind](n), iterations, polynomial) <= 1e-5 / 2, (kind, n)


def test_large_matrices_are_edited_as_if_alone_in_autocast_too() -> None:
    weight = normal(3, 150, 140, dtype=torch.float32)
    alone = torch.cat([orthogonalise(one[None]) for one in weight])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(orthogonalise(weight), alone)
        assert torch.is_autocast_enabled("cpu")


def test_gaussians_get_as_far_as_published() -> None:
    weight = normal(1, 512, 3136, dtype=torch.float32)
    for polynomial, iterations, low, high in (
        ("cubic", 5, 0.20, 0.45),
        ("cubic", 10, 0.94, 1.00),
        ("quintic", 5, 0.72, 1.00),
    ):
        x = orthogonalise(weight, iterations, polynomial)[0].double()
        values = torch.linalg.eigvalsh(x @ x.mT).clamp(min=0).sqrt()
        assert values.min().item() == pytest.approx(low, abs=0.01), (polynomial, iterations)
        assert values.max().item() == pytest.approx(high, abs=0.01), (polynomial, iterations)
    x = orthogonalise(normal(1, 512, 512, dtype=torch.float32), 5)
    assert torch.linalg.svdvals(x).median().item() == pytest.approx(0.27, abs=0.01)


def test_singular_values_follow_the_scalar_polynomial() -> None:
    polynomials: dict[str, Callable[[Tensor], Tensor]] = {
        "cubic": lambda s: 1.5 * s - 0.5 * s**3,
        "quintic": lambda s: 2 * s - 1.5 * s**3 + 0.5 * s**5,
    }
    for shape, name in product(((20, 20), (14, 20), (60, 20), (20, 60)), polynomials):
        weight = normal(1, *shape)
        expected = torch.linalg.svdvals(weight[0]) / torch.linalg.norm(weight)
        for _ in range(7):
            expected = polynomials[name](expected)
        values = torch.linalg.svdvals(orthogonalise(weight, 7, name)[0])
        torch.testing.assert_close(
            values.sort().values, expected.sort().values, rtol=1e-9, atol=1e-12
        )


def test_receipt_reports_what_was_reached() -> None:
    def distance(weight: np.ndarray, groups: int) -> float:
        total = 0.0
        for matrix in slices(weight / scale_of(weight, groups), groups):
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            total += float(((wide @ wide.T - np.eye(len(wide))) ** 2).sum())
        return total

    for layer in LAYERS:
        exact = rlplast.fire(make(layer, torch.float64), polynomial="exact")
        assert exact.dfi_after is not None and exact.dfi_after < 1e-24, layer
        module = make(layer, torch.float64)
        before, groups = array(weight_of(module)), groups_of(module)
        receipt = rlplast.fire(module, iterations=3)
        after = array(weight_of(module))
        assert receipt.dfi_before == pytest.approx(distance(before, groups), rel=1e-9), layer
        assert receipt.dfi_after == pytest.approx(distance(after, groups), rel=1e-9, abs=1e-12)
        assert receipt.sfe == pytest.approx(float(((after - before) ** 2).sum()), rel=1e-12)
        assert receipt.entries_touched == before.size, layer


shapes = st.sampled_from([(6, 3), (3, 6), (5, 5), (1, 4)])
seeds = st.integers(0, 2**31)


@given(shape=shapes, seed=seeds)
@settings(max_examples=30)
def test_exact_is_nearer_than_any_other_orthogonal_matrix_of_its_scale(
    shape: tuple[int, int], seed: int
) -> None:
    weight = normal(*shape, seed=seed)
    scale = math.sqrt(shape[0] / shape[1])
    nearest = scale * orthogonalise(weight[None], polynomial="exact")[0]
    other = torch.linalg.qr(normal(max(shape), min(shape), seed=seed + 1)).Q
    other = scale * (other if shape[0] >= shape[1] else other.mT)
    assert (weight - nearest).norm() <= (weight - other).norm() + 1e-12
    stays = nn.Linear(shape[1], shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        stays.weight.copy_(other)
    rlplast.fire(stays, polynomial="exact")
    torch.testing.assert_close(weight_of(stays), other, rtol=0, atol=1e-12)


@given(shape=shapes, seed=seeds, factor=st.floats(1e-3, 1e3))
@settings(max_examples=30)
def test_projection_ignores_scale_and_follows_rotations(
    shape: tuple[int, int], seed: int, factor: float
) -> None:
    weight = normal(*shape, seed=seed)
    left = torch.linalg.qr(normal(shape[0], shape[0], seed=seed + 1)).Q
    right = torch.linalg.qr(normal(shape[1], shape[1], seed=seed + 2)).Q
    plain = orthogonalise(weight[None])[0]
    turned = orthogonalise(factor * (left @ weight @ right)[None])[0]
    torch.testing.assert_close(turned, left @ plain @ right, rtol=0, atol=1e-9)


def test_layers_of_one_shape_are_edited_as_if_alone() -> None:
    model = randomise(nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)], nn.Conv2d(6, 6, 2)), 3)
    model.double()
    before = [array(weight_of(layer)) for layer in model]
    rlplast.fire(model)
    for layer, weight in zip(model, before, strict=True):
        assert relative_error(weight_of(layer), fire_twin(weight, 10, "cubic")) <= 1e-12


def test_a_matrix_without_a_nearest_one_is_named_and_nothing_is_written() -> None:
    for value, polynomial in product((0.0, math.nan, math.inf), ("cubic", "quintic", "exact")):
        model = randomise(ConvNet(), 1)
        with torch.no_grad():
            weight_of(model[2])[:, :, 1, 0] = value
        before = snapshot(model)
        with pytest.raises(BadWeights, match=r"model\.2\.weight .*slice 2 of 4"):
            rlplast.fire(model, polynomial=polynomial)
        after = snapshot(model)
        assert all(torch.equal(after[n].nan_to_num(), before[n].nan_to_num()) for n in after)
