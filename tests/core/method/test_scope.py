"""Scopes: what they offer to a method."""

import torch
from torch import nn

import rlplast


def test_buffers_of_a_frozen_layer_stay_as_they_are() -> None:
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(norm, nn.Linear(3, 2))
    model(torch.randn(8, 3))
    statistics = norm.running_var.clone()
    norm.requires_grad_(False)
    rlplast.full_reset(model)
    assert torch.equal(norm.running_var, statistics)
    norm.requires_grad_(True)
    rlplast.full_reset(model)
    assert torch.equal(norm.running_var, torch.ones(3))
