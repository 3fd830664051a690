"""Hypersphere projection, row by row."""

import math

import torch

import rlplast
from tests.methods.nets import ConvNet, changed, randomise, snapshot


def test_every_row_is_projected_to_length_one_and_one_of_zeros_stays() -> None:
    for include_head in (True, False):
        model = randomise(ConvNet(norm=True), 3)
        with torch.no_grad():
            model.get_parameter("7.weight")[1] = 0
        before = snapshot(model)
        rlplast.apply("hypersphere_project", model, include_head=include_head)
        after = snapshot(model)
        projected = {f"{layer}.weight" for layer in (0, 3, 7, *([9] if include_head else []))}
        assert changed(before, model) == projected
        for name in projected:
            for old, new in zip(before[name], after[name], strict=True):
                length = math.sqrt(sum(x * x for x in old.flatten().tolist()))
                torch.testing.assert_close(new, old / (length or 1), rtol=1e-6, atol=1e-7)
