"""Hypersphere projection: row lengths, closed forms, and what is left alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import NothingToEdit
from tests.methods.nets import ConvNet, randomise, snapshot


def project(model: Any, **options: Any) -> dict[str, Tensor]:
    rlplast.apply("hypersphere_project", model, **options)
    return snapshot(model.module if isinstance(model, rlplast.Network) else model)


def test_every_row_has_length_one_and_keeps_its_direction() -> None:
    model = randomise(ConvNet(norm=True), 3)
    before, after = snapshot(model), project(model)
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        for old, new in zip(before[f"{name}.weight"], after[f"{name}.weight"], strict=True):
            length = sum(x * x for x in old.flatten().tolist()) ** 0.5
            torch.testing.assert_close(new, old / length, rtol=1e-6, atol=1e-7)
    rest = {n for n in before if not torch.equal(before[n], after[n])}
    assert all(n.endswith("weight") for n in rest)
    assert not any("norm" in n for n in rest)
    again = project(model)
    for name in after:
        torch.testing.assert_close(again[name], after[name], rtol=1e-6, atol=1e-7)


def test_heads_are_left_when_asked_and_rows_of_zeros_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[1] = 0
    head = model[2].weight.clone()
    after = project(model, include_head=False)
    assert torch.equal(after["2.weight"], head)
    assert after["0.weight"].norm(dim=1).tolist() == pytest.approx([1, 0, 1, 1])
    with pytest.raises(NothingToEdit, match="hypersphere_project"):
        project(nn.LayerNorm(4))
