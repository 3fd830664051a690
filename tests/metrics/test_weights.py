"""Weight metrics against closed forms and slow NumPy twins."""

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.metrics import ranks
from rlplast.metrics.weights import (
    dfi,
    dfi_scaled,
    fire_scale,
    matrix_slices,
    measure,
    sfe,
    sfe_normalized,
    weight_difference,
    weight_norm,
)
from tests.methods.nets import normal

SHAPES = [
    (5, 5),
    (7, 3),
    (3, 7),
    (1, 6),
    (6, 1),
    (4, 6, 3),
    (6, 4, 3, 2),
    (2, 5, 3, 3),
    (3, 2, *[2] * 3),
]
WEIGHT_METRICS = (weight_norm, dfi, dfi_scaled)
RANK_METRICS = (ranks.spectral_norm, ranks.srank, ranks.effective_rank, ranks.stable_rank)
REFERENCE_METRICS = (weight_difference, sfe, sfe_normalized)


def slices_by_loop(weight: Tensor) -> list[np.ndarray]:
    array = weight.double().numpy()
    return [array[(slice(None), slice(None), *k)] for k in np.ndindex(*array.shape[2:])]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_slices_are_a_view_in_both_layouts(layout: torch.memory_format) -> None:
    weight = normal(4, 3, 2, 5).to(memory_format=layout)
    matrix_slices(weight)[7].fill_(3.0)
    assert (weight[:, :, 1, 2] == 3.0).all()
    assert (weight == 3.0).sum() == 12


def test_vectors_empty_weights_and_other_shapes_are_refused() -> None:
    for shape in ((), (5,), (0, 4), (4, 0), (2, 2, 0)):
        with pytest.raises(ConfigError, match=re.escape(str(list(shape)))):
            dfi(torch.zeros(shape))
        with pytest.raises(ConfigError):
            fire_scale(shape)
    with pytest.raises(ConfigError, match=r"\[2, 3\].*\[1, 3\]"):
        sfe(torch.ones(2, 3), torch.ones(1, 3))


def test_norms_and_errors_equal_the_numpy_sums() -> None:
    for shape in ((), (5,), *SHAPES):
        weight, reference = normal(*shape, seed=1), normal(*shape, seed=2)
        w, r = weight.numpy(), reference.numpy()
        error = ((w - r) ** 2).sum()
        assert weight_norm(weight).item() == pytest.approx(np.sqrt((w**2).sum()), rel=1e-13)
        assert sfe(weight, reference).item() == pytest.approx(error, rel=1e-13)
        assert weight_difference(weight, reference).item() ** 2 == pytest.approx(error)
        normalised = sfe_normalized(weight, reference).item()
        assert normalised == pytest.approx(error / (r**2).sum(), rel=1e-13)


def test_norms_of_many_large_and_small_float32_entries_keep_their_digits() -> None:
    weight = 1 + 0.02 * normal(4_000_000, dtype=torch.float32)
    exact = weight.double().square().sum().sqrt().item()
    assert weight_norm(weight).item() == pytest.approx(exact, rel=1e-9)
    for size in (1e30, 1e-30):  # whose squares float32 does not hold
        assert weight_norm(torch.full((4,), size)).item() == pytest.approx(2 * size, rel=1e-6)


def test_dfi_equals_the_large_and_scaled_the_smaller_gram_looped_over_slices() -> None:
    for shape in SHAPES:
        for weight in (normal(*shape, seed=3), torch.zeros(shape, dtype=torch.float64)):
            scale = math.sqrt(shape[0] / shape[1]) / math.prod(shape[2:])
            large = smaller = 0.0
            for w in slices_by_loop(weight):
                large += ((w @ w.T - np.eye(len(w))) ** 2).sum()
                x = w / scale
                gram = x.T @ x if shape[0] > shape[1] else x @ x.T
                smaller += ((gram - np.eye(len(gram))) ** 2).sum()
            assert dfi(weight).item() == pytest.approx(large, rel=1e-12)
            assert dfi_scaled(weight).item() == pytest.approx(smaller, rel=1e-12)


def test_metrics_return_one_float64_read_no_value_and_leave_the_weight_alone() -> None:
    for metric in WEIGHT_METRICS + RANK_METRICS + REFERENCE_METRICS:
        count = 1 + (metric in REFERENCE_METRICS)
        arguments = [normal(6, 3, 2, seed=seed) for seed in range(count)]
        copies = [argument.clone() for argument in arguments]
        value = metric(*arguments)
        assert value.shape == () and value.dtype == torch.float64
        assert all(torch.equal(*pair) for pair in zip(arguments, copies, strict=True))
        # A meta tensor has no values: `.item()` or an `if` on one would raise.
        assert metric(*(argument.to("meta") for argument in arguments)).device.type == "meta"
        for dtype in (torch.bfloat16, torch.float16):  # measured in float32
            arguments = [
                normal(40, 30, seed=seed, dtype=torch.float32).to(dtype) for seed in range(count)
            ]
            expected = metric(*[argument.double() for argument in arguments]).item()
            assert metric(*arguments).item() == pytest.approx(expected, rel=1e-5), metric


def state_dict(seed: int) -> dict[str, Tensor]:
    return {
        "conv.weight": normal(4, 3, 2, 2, seed=seed, dtype=torch.float32),
        "conv.bias": normal(4, seed=seed, dtype=torch.float32),
        "fc.weight": normal(5, 16, seed=seed + 1, dtype=torch.float32).bfloat16(),
        "steps": torch.ones(2, 2, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
    }


def test_measure_equals_the_single_metrics_in_float64() -> None:
    after, before = state_dict(0), state_dict(10)
    result = measure(after, before)
    assert list(result["tensors"]) == ["conv.weight", "fc.weight"]  # the matrices, in order
    for name, row in result["tensors"].items():
        weight, reference = after[name].double(), before[name].double()
        expected = {m.__name__: m(weight).item() for m in WEIGHT_METRICS + RANK_METRICS}
        expected |= {m.__name__: m(weight, reference).item() for m in REFERENCE_METRICS}
        assert row == expected and all(type(value) is float for value in row.values())
    names = {metric.__name__ for metric in WEIGHT_METRICS + RANK_METRICS}
    assert measure(after)["total"].keys() == names


def test_measure_totals_are_sums_roots_quotients_and_null() -> None:
    after, before = state_dict(0), state_dict(10)
    names = ("conv.weight", "fc.weight")
    pairs = [(after[n].double().numpy(), before[n].double().numpy()) for n in names]
    squared_error = sum(((a - b) ** 2).sum() for a, b in pairs)
    result = measure(after, before)
    rows, total = result["tensors"].values(), result["total"]
    expected = {
        "weight_norm": sum((a**2).sum() for a, _ in pairs) ** 0.5,
        "weight_difference": squared_error**0.5,
        "sfe": squared_error,
        "sfe_normalized": squared_error / sum((b**2).sum() for _, b in pairs),
    }
    for metric in ("dfi", "dfi_scaled"):
        expected[metric] = sum(row[metric] or 0.0 for row in rows)
    assert {name: total[name] for name in expected} == pytest.approx(expected)
    assert all(total[metric.__name__] is None for metric in RANK_METRICS)


def test_measure_gives_null_where_there_is_no_value() -> None:
    zero, one = torch.zeros(2, 2), torch.ones(2, 2)
    assert sfe_normalized(zero, zero).item() == 0.0
    assert sfe_normalized(one, zero).item() == math.inf
    unchanged = measure({"a": zero, "b": one}, {"a": zero, "b": one})
    for row in unchanged["tensors"].values():
        assert all(value is not None and math.isfinite(value) for value in row.values())
    assert unchanged["total"]["sfe_normalized"] == 0.0
    result = measure({"a": one}, {"a": zero})
    assert result["tensors"]["a"]["sfe_normalized"] is result["total"]["sfe_normalized"] is None
    assert result["total"]["sfe"] == 4.0
    result = measure({"bias": torch.ones(3, requires_grad=True)}, {})
    assert result["tensors"] == {} and result["total"]["dfi"] == 0.0


def test_measure_names_the_tensor_that_does_not_match_or_is_not_finite() -> None:
    references: list[tuple[dict[str, Tensor], str]] = [
        ({}, r"'a\.w'.* missing in the reference"),
        ({"a.w": torch.ones(3, 2)}, r"'a\.w'.*\[2, 3\].*\[3, 2\]"),
        ({"a.w": torch.ones(2, 3), "b.w": torch.ones(1, 1)}, r"'b\.w' is missing in the file"),
    ]
    for reference, message in references:
        with pytest.raises(ConfigError, match=message):
            measure({"a.w": torch.ones(2, 3)}, reference)
    for bad in (math.nan, math.inf, -math.inf):
        good, broken = {"a": torch.ones(2, 2)}, {"a": torch.tensor([[1.0, bad], [0.0, 1.0]])}
        with pytest.raises(BadWeights, match=r"^tensor 'a': 1 of 4"):
            measure(broken, good)
        with pytest.raises(BadWeights, match=r"^reference tensor 'a'"):
            measure(good, broken)
