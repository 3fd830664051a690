"""Sketches of weights against the sums written out, and against exact inner products."""

import math

import torch
from torch import Tensor

from rlplast.metrics.sketch import weight_sketch
from tests.methods.nets import normal


def zeros(*weights: Tensor) -> list[Tensor]:
    return [torch.zeros_like(weight) for weight in weights]


def test_every_entry_is_in_one_sum_with_a_sign() -> None:
    columns = []
    for entry in range(6):
        unit = torch.zeros(6)
        unit[entry] = 1
        columns.append(
            weight_sketch([unit[:2].view(1, 2), unit[2:]], zeros(unit[:2].view(1, 2), unit[2:]), 4)
        )
    matrix = torch.stack(columns, 1)
    assert (matrix.abs().sum(0) == 1).all() and set(matrix.unique().tolist()) <= {-1, 0, 1}
    weights, initial = ([normal(1, 2, seed=seed), normal(4, seed=seed + 1)] for seed in (1, 3))
    change = torch.cat([(a - b).flatten() for a, b in zip(weights, initial, strict=True)])
    torch.testing.assert_close(weight_sketch(weights, initial, 4), matrix @ change)


def test_inner_products_are_kept_on_average() -> None:
    a = normal(500, seed=1)
    b = normal(500, seed=2) + 0.5 * a
    found = torch.tensor(
        [
            float(weight_sketch([a], zeros(a), 64, seed) @ weight_sketch([b], zeros(b), 64, seed))
            for seed in range(400)
        ]
    )
    exact = float(a @ b)
    spread = math.sqrt((float(a @ a) * float(b @ b) + exact**2) / 64)  # of one sketch
    assert abs(float(found.mean()) - exact) < 4 * spread / math.sqrt(len(found))
    assert 0.8 < float(found.std()) / spread < 1.2
