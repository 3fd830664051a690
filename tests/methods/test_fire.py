"""FIRE against a float64 twin, closed forms of its spectrum."""

import math
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.methods.fire import orthogonalise
from tests.methods.nets import ConvNet, Mlp, normal, randomise, relative_error, snapshot
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
DEFICIENT = ("tall", "wide", "square", "nearly square", "conv 8x8", "conv 3x2", "grouped")
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


# --- against the twin ---------------------------------------------------------------------


@pytest.mark.parametrize("polynomial", ["cubic", "quintic", "exact"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layout_matches_the_float64_twin(layer: str, polynomial: str) -> None:
    for dtype, tolerance in TOLERANCE.items():
        module = make(layer, dtype)
        before = array(weight_of(module))
        rlplast.fire(module, polynomial=polynomial)
        expected = fire_twin(before, 10, polynomial, groups_of(module))
        assert relative_error(weight_of(module), expected) <= tolerance, dtype


@pytest.mark.parametrize("iterations", [1, 20])
@pytest.mark.parametrize("polynomial", ["cubic", "quintic"])
@pytest.mark.parametrize("layer", ["tall", "square", "conv 3x2"])
def test_every_number_of_iterations_matches_the_twin(
    layer: str, polynomial: str, iterations: int
) -> None:
    module = make(layer, torch.float64)
    before = array(weight_of(module))
    rlplast.fire(module, iterations=iterations, polynomial=polynomial)
    expected = fire_twin(before, iterations, polynomial)
    assert relative_error(weight_of(module), expected) <= 1e-9


DEFICIENCIES = list(product(DEFICIENT, ["rank one", "dead row", "dead column"]))


@pytest.mark.parametrize(("layer", "how"), DEFICIENCIES)
def test_rank_deficient_matrices_match_the_twin(layer: str, how: str) -> None:
    for polynomial, dtype in product(["cubic", "quintic"], [torch.float32, torch.float64]):
        module = make(layer, dtype)
        make_deficient(module, how)
        before = array(weight_of(module))
        rlplast.fire(module, polynomial=polynomial)
        expected = fire_twin(before, 10, polynomial, groups_of(module))
        assert relative_error(weight_of(module), expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("layer", "how"), DEFICIENCIES)
def test_exact_completes_a_rank_deficient_matrix_to_a_nearest_orthogonal_one(
    layer: str, how: str
) -> None:
    module = make(layer, torch.float64)
    make_deficient(module, how)
    before = array(weight_of(module))
    rlplast.fire(module, polynomial="exact")
    groups = groups_of(module)
    after = array(weight_of(module)) / scale_of(before, groups)
    for old, new in zip(slices(before, groups), slices(after, groups), strict=True):
        gram = new @ new.T if new.shape[0] <= new.shape[1] else new.T @ new
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)
        # Nearest: the inner product with W reaches the nuclear norm, its upper bound.
        nuclear = np.linalg.svd(old, compute_uv=False).sum()
        assert float((old * new).sum()) == pytest.approx(nuclear, rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        (torch.float32, 1e-30),
        (torch.float32, 1e30),
        (torch.float64, 1e-200),
        (torch.float64, 1e200),
    ],
)
@pytest.mark.parametrize("layer", ["tall", "square", "wide"])
def test_norms_whose_squares_are_out_of_range_are_no_obstacle(
    layer: str, dtype: torch.dtype, factor: float
) -> None:
    module = make(layer, dtype)
    before = array(weight_of(module))
    weight_of(module).mul_(factor)
    rlplast.fire(module)
    assert relative_error(weight_of(module), fire_twin(before, 10, "cubic")) <= TOLERANCE[dtype]


# --- in float32 as in float64 --------------------------------------------------------------


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


@pytest.mark.parametrize("kind", HARD)
def test_float32_ends_where_float64_does(kind: str) -> None:
    for n, polynomial in product((3, 64, 160), ("cubic", "quintic")):
        for iterations in (5, 10, 20):
            assert deviation(HARD[kind](n), iterations, polynomial) <= 1e-5 / 2


# Each kind with both polynomials; numbers of iterations take turns.
LARGE = [*zip(product(HARD, ("cubic", "quintic")), cycle((5, 9, 10, 11, 20)), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "iterations"), LARGE)
def test_large_float32_ends_where_float64_does(case: tuple[str, str], iterations: int) -> None:
    kind, polynomial = case
    for n in (256, 520):
        assert deviation(HARD[kind](n), iterations, polynomial) <= 1e-5 / 2


@pytest.mark.parametrize("polynomial", ["cubic", "quintic"])
def test_any_number_of_iterations_ends_where_float64_does(polynomial: str) -> None:
    for iterations in (40, 1000):
        assert deviation(normal(48, 48), iterations, polynomial) <= 1e-5 / 3


def test_long_sums_of_equal_products_are_as_exact() -> None:
    assert deviation(torch.ones(1055, 1055), 1, "cubic") <= 1e-5 / 3


def test_a_callers_autocast_goes_on_after_large_matrices() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        orthogonalise(torch.eye(130)[None])
        assert torch.is_autocast_enabled("cpu")


def test_autocast_changes_nothing() -> None:
    weight = normal(3, 40, 40, dtype=torch.float32)
    expected = orthogonalise(weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(orthogonalise(weight), expected)


def test_large_matrices_are_edited_as_if_alone() -> None:
    weight = normal(3, 150, 140, dtype=torch.float32)
    alone = torch.cat([orthogonalise(one[None]) for one in weight])
    assert torch.equal(orthogonalise(weight), alone)


# --- how far it gets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("polynomial", "iterations", "low", "high"),
    [("cubic", 5, 0.20, 0.45), ("cubic", 10, 0.94, 1.00), ("quintic", 5, 0.72, 1.00)],
)
def test_a_wide_gaussian_gets_as_far_as_published(
    polynomial: str, iterations: int, low: float, high: float
) -> None:
    weight = normal(1, 512, 3136, dtype=torch.float32)
    x = orthogonalise(weight, iterations, polynomial)[0].double()
    values = torch.linalg.eigvalsh(x @ x.mT).clamp(min=0).sqrt()
    assert values.min().item() == pytest.approx(low, abs=0.01)
    assert values.max().item() == pytest.approx(high, abs=0.01)


def test_a_square_gaussian_is_far_from_orthogonal_after_five_cubic_steps() -> None:
    x = orthogonalise(normal(1, 512, 512, dtype=torch.float32), 5)
    assert torch.linalg.svdvals(x).median().item() == pytest.approx(0.27, abs=0.01)


@pytest.mark.parametrize("shape", [(20, 20), (14, 20), (60, 20), (20, 60)])
@pytest.mark.parametrize("polynomial", ["cubic", "quintic"])
def test_singular_values_follow_the_scalar_polynomial(
    shape: tuple[int, int], polynomial: str
) -> None:
    weight = normal(1, *shape)
    expected = torch.linalg.svdvals(weight[0]) / torch.linalg.norm(weight)
    for _ in range(7):
        cubic = 1.5 * expected - 0.5 * expected**3
        quintic = 2 * expected - 1.5 * expected**3 + 0.5 * expected**5
        expected = cubic if polynomial == "cubic" else quintic
    values = torch.linalg.svdvals(orthogonalise(weight, 7, polynomial)[0])
    torch.testing.assert_close(values.sort().values, expected.sort().values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layer", LAYERS)
def test_receipt_reports_what_was_reached(layer: str) -> None:
    exact = rlplast.fire(make(layer, torch.float64), polynomial="exact")
    assert exact.dfi_after is not None and exact.dfi_after < 1e-24

    def distance(weight: np.ndarray, groups: int) -> float:
        total = 0.0
        for matrix in slices(weight / scale_of(weight, groups), groups):
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            total += float(((wide @ wide.T - np.eye(len(wide))) ** 2).sum())
        return total

    module = make(layer, torch.float64)
    before, groups = array(weight_of(module)), groups_of(module)
    receipt = rlplast.fire(module, iterations=3)
    after = array(weight_of(module))
    assert receipt.dfi_before == pytest.approx(distance(before, groups), rel=1e-9)
    assert receipt.dfi_after == pytest.approx(distance(after, groups), rel=1e-9, abs=1e-12)
    assert receipt.sfe == pytest.approx(float(((after - before) ** 2).sum()), rel=1e-12)
    assert receipt.entries_touched == before.size


# --- properties of the projection ---------------------------------------------------------

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


def test_an_orthogonal_matrix_of_the_right_scale_stays() -> None:
    layer = nn.Linear(5, 20, bias=False, dtype=torch.float64)
    orthogonal = 2 * torch.linalg.qr(normal(20, 5)).Q
    with torch.no_grad():
        layer.weight.copy_(orthogonal)
    rlplast.fire(layer, polynomial="exact")
    torch.testing.assert_close(weight_of(layer), orthogonal, rtol=0, atol=1e-12)


def test_layers_of_one_shape_are_edited_as_if_alone() -> None:
    model = randomise(nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)], nn.Conv2d(6, 6, 2)), 3)
    model.double()
    before = [array(weight_of(layer)) for layer in model]
    rlplast.fire(model)
    for layer, weight in zip(model, before, strict=True):
        assert relative_error(weight_of(layer), fire_twin(weight, 10, "cubic")) <= 1e-12


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("polynomial", ["cubic", "quintic", "exact"])
@pytest.mark.parametrize(
    ("value", "what"), [(0.0, "zero"), (math.nan, "not finite"), (math.inf, "not finite")]
)
def test_a_matrix_without_a_nearest_one_is_named_and_nothing_is_written(
    value: float, what: str, polynomial: str
) -> None:
    model = randomise(ConvNet(), 1)
    with torch.no_grad():
        weight_of(model[2])[:, :, 1, 0] = value
    before = snapshot(model)
    with pytest.raises(BadWeights, match=rf"model\.2\.weight is {what} \(slice 2 of 4\)"):
        rlplast.fire(model, polynomial=polynomial)
    after = snapshot(model)
    assert all(torch.equal(after[n].nan_to_num(), before[n].nan_to_num()) for n in after)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polynomial": "qubic"}, "did you mean 'cubic'"),
        ({"iterations": 0}, "iterations = 0"),
        ({"iteratons": 3}, "did you mean 'iterations'"),
        ({"scope": "vitt"}, "did you mean 'vit'"),
    ],
)
def test_bad_options_are_refused_with_the_nearest_allowed(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rlplast.fire(Mlp(), **options)


# --- as a hook, in the registry -----------------------------------------------------------
