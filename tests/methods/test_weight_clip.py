"""Weight clipping beside the loop of the authors' algorithm."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import NothingToEdit
from tests.methods.nets import ConvNet, changed, randomise, snapshot


def loop_of_algorithm_1(model: nn.Module, kappa: float, clip_last: bool = True) -> list[Tensor]:
    """Parameters in order: a matrix or kernel sets the bound, and the bias after it takes it."""
    bound, clipped = math.inf, []
    params = list(model.parameters())
    for i, p in enumerate(params):
        if p.dim() > 1:
            fan_in = math.prod(p.shape[1:])
            bound = kappa / math.sqrt(fan_in)
        if i >= len(params) - 2 and not clip_last:
            bound = math.inf
        clipped.append(torch.tensor([min(max(x, -bound), bound) for x in p.flatten().tolist()]))
    return [c.view_as(p) for c, p in zip(clipped, params, strict=True)]


def test_every_parameter_is_clipped_as_in_algorithm_1() -> None:
    for kappa, include_head in product((0.3, 1.0, 5.0), (True, False)):
        model = randomise(ConvNet(norm=False), 3)
        expected = loop_of_algorithm_1(model, kappa, include_head)
        rlplast.apply("weight_clip", model, kappa=kappa, include_head=include_head)
        for ours, theirs in zip(model.parameters(), expected, strict=True):
            assert torch.equal(ours, theirs), (kappa, include_head)


def test_norm_layers_and_embeddings_are_left_alone() -> None:
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    before = snapshot(randomise(model, 1))
    rlplast.apply("weight_clip", model)
    assert {name[0] for name in changed(before, model)} == {"1", "3"}
    with pytest.raises(NothingToEdit, match="weight_clip"):
        rlplast.apply("weight_clip", nn.LayerNorm(4))
