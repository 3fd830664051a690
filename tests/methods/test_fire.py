"""FIRE against a float64 twin, and which tensors it edits in each scope."""

import math
from collections.abc import Callable
from itertools import cycle, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.methods.fire import orthogonalise
from tests.methods.nets import (
    ConvNet,
    changed,
    normal,
    randomise,
    relative_error,
    snapshot,
)
from tests.naive.interventions import fire_twin

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "tall": lambda: nn.Linear(8, 24),
    "wide": lambda: nn.Linear(24, 8),
    "square": lambda: nn.Linear(12, 12),
    "nearly square": lambda: nn.Linear(9, 12),
    "1 x n": lambda: nn.Linear(7, 1),
    "n x 1": lambda: nn.Linear(1, 7),
    "conv 8x8": lambda: nn.Conv2d(4, 8, 8),
    "conv 3x2": lambda: nn.Conv2d(6, 5, (3, 2)),
    "conv 1d": lambda: nn.Conv1d(3, 6, 4),
    "grouped": lambda: nn.Conv2d(8, 12, 3, groups=4),
    "depthwise": lambda: nn.Conv2d(6, 12, 3, groups=6),
    "channels last": lambda: nn.Conv2d(6, 5, 3).to(memory_format=torch.channels_last),
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


def spectrum(values: Tensor) -> Tensor:
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
    "wide and constant": lambda n: torch.full((n // 2, 2 * n), 0.1, dtype=torch.float64),
    "rank 1": lambda n: of_rank(n, 1),
    "rank n / 2": lambda n: of_rank(n, n // 2),
    "dead rows and columns": lambda n: holes(n, 3),
    "one row": lambda n: normal(n, n) * torch.eye(n, dtype=torch.float64)[:, :1],
    "ill-conditioned": lambda n: spectrum(torch.logspace(0, -12, n, dtype=torch.float64)),
    "orthogonal": lambda n: spectrum(torch.ones(n, dtype=torch.float64)),
    "one giant value": lambda n: spectrum(torch.tensor([1e4] + [1.0] * (n - 1)).double()),
    "huge": lambda n: 1e34 * normal(n, n),
    "tiny": lambda n: 1e-36 * normal(n, n),
}


@torch.no_grad()
def test_hard_matrices_match_the_twin_and_exact_completes_them() -> None:
    for kind, polynomial in product(HARD, ("cubic", "quintic", "exact")):
        weight = HARD[kind](6)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        layer.weight.copy_(weight)
        if polynomial != "exact":
            assert twin_error(layer, polynomial=polynomial) <= 1e-9, (kind, polynomial)
            continue
        rlplast.fire(layer, polynomial="exact")
        new = layer.weight / scale_of(weight.numpy())
        gram = new @ new.T if new.shape[0] <= new.shape[1] else new.T @ new
        torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=1e-12)
        # Nearest: the inner product with W reaches the nuclear norm, its upper bound.
        nuclear = float(torch.linalg.svdvals(weight).sum())
        assert float((weight * new).sum()) == pytest.approx(nuclear, rel=1e-12), kind


def deviation(weight: Tensor, iterations: int, polynomial: str) -> float:
    """Return how far, in spectral norm, float32 weights end from the same in float64."""
    weight = weight.float()[None]
    found = orthogonalise(weight, iterations, polynomial).double()
    expected = orthogonalise(weight.double(), iterations, polynomial)
    return torch.linalg.matrix_norm(found[0] - expected[0], 2).item()


def test_float32_ends_where_float64_does() -> None:
    for kind, n, polynomial in product(HARD, (3, 40), ("cubic", "quintic")):
        for iterations in (5, 20) if n == 3 else (10,):
            found = deviation(HARD[kind](n), iterations, polynomial)
            assert found <= 1e-5 / 2, (kind, n, polynomial, iterations)
    for polynomial, iterations in product(("cubic", "quintic"), (40, 1000)):
        assert deviation(normal(24, 24), iterations, polynomial) <= 1e-5 / 3


@pytest.mark.slow
def test_large_float32_ends_where_float64_does() -> None:
    for kind, iterations in zip(HARD, cycle((5, 9, 10, 11, 20)), strict=False):
        for n, polynomial in ((256, "quintic"), (520, "cubic")):
            assert deviation(HARD[kind](n), iterations, polynomial) <= 1e-5 / 2, (kind, n)


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


def test_layers_of_one_shape_are_edited_as_if_alone_in_autocast_too() -> None:
    model = randomise(nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)], nn.Conv2d(6, 6, 2)), 3)
    model.double()
    before = [array(weight_of(layer)) for layer in model]
    rlplast.fire(model)
    for layer, weight in zip(model, before, strict=True):
        assert relative_error(weight_of(layer), fire_twin(weight, 10, "cubic")) <= 1e-12
    large = normal(3, 150, 140, dtype=torch.float32)
    alone = torch.cat([orthogonalise(one[None]) for one in large])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(orthogonalise(large), alone)
        assert torch.is_autocast_enabled("cpu")


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


# Scopes.


def test_dqn_projects_convs_and_returns_linears_to_their_start() -> None:
    model, target = randomise(ConvNet(), 1), randomise(ConvNet(), 2)
    start = snapshot(model)
    randomise(model, 3)
    before = snapshot(model)
    rlplast.fire(model, scope="dqn", target=target, initial=start)
    after = snapshot(model)
    assert changed(before, model) == {"0.weight", "2.weight"} | {
        f"{layer}.{role}" for layer in (5, 7) for role in ("weight", "bias")
    }
    for name in ("0.weight", "2.weight"):
        twin = fire_twin(before[name].numpy(), 10, "cubic")
        assert relative_error(after[name], twin) <= 1e-5
    for name in ("5.weight", "5.bias", "7.weight", "7.bias"):
        assert torch.equal(after[name], start[name])
    assert not changed(after, target)  # conv biases included


def test_attention_edits_query_and_key_alone_packed_or_not() -> None:
    for sizes in ({}, {"kdim": 4, "vdim": 5}):
        model = randomise(nn.MultiheadAttention(6, 2, **sizes), 1)
        before = snapshot(model)
        rlplast.fire(model, scope="vit")
        packed = {"in_proj_weight"}
        assert changed(before, model) == ({"q_proj_weight", "k_proj_weight"} if sizes else packed)
        for name in changed(before, model):
            old, new = (t[name].split(6) for t in (before, snapshot(model)))
            for part in range(min(2, len(old))):
                twin = fire_twin(old[part].numpy(), 10, "cubic")
                assert relative_error(new[part], twin) <= 1e-5
            assert sizes or torch.equal(new[2], old[2])
    with pytest.raises(ConfigError, match="no linear or conv weight"):
        rlplast.fire(nn.Sequential(nn.LayerNorm(3), nn.ReLU()))


def test_two_tied_linears_are_refused_or_edited_once() -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    model = randomise(nn.Sequential(first, nn.ReLU(), second), 1)
    before = snapshot(model)
    with pytest.raises(ConfigError, match="include_tied"):
        rlplast.fire(model, iterations=3)
    assert not changed(before, model)
    receipt = rlplast.fire(model, include_tied=True, iterations=3)
    twin = fire_twin(before["0.weight"].numpy(), 3, "cubic")
    assert relative_error(second.weight, twin) <= 1e-6
    assert receipt.entries_touched == 25
