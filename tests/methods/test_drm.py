"""drm beside a slow twin: which α it takes, and what it mixes by it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rlplast
from rlplast.core.network.blocks import Block
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import observed
from tests.naive import redo as naive
from tests.naive.interventions import shrink_perturb_twin

THRESHOLD = 0.6


def law(block: Block, generator: torch.Generator) -> Tensor:
    """An initialisation that draws nothing, so that a twin knows it."""
    return torch.linspace(-0.5, 0.3, block.view.numel()).view(block.view.shape)


def made(net: str) -> tuple[Trained, Tensor]:
    trained = Trained(net).train(3)
    trained.network.init = law
    return trained, normal(32, *NETS[net].sample, seed=77)


def fire(trained: Trained, probe: Tensor, **params: Any) -> rlplast.Receipt:
    return rlplast.apply("drm", trained.network, inputs=lambda size, generator: probe, **params)


def alphas(trained: Trained, probe: Tensor, rate: float, low: float, high: float) -> list[float]:
    """α of each chain of layers, from the twin's dormant units."""
    found = observed(trained.network, probe)
    every = []
    for chain in trained.net.chains(trained.module):
        units = [u for name in chain for u in naive.dormant(found[name], THRESHOLD)]
        every.append(min(max(low, 1 - rate * sum(units) / len(units)), high))
    return every


@pytest.mark.parametrize("net", NETS)
def test_every_parameter_is_mixed_by_the_share_of_dormant_units(net: str) -> None:
    check_mixing(net, 0.7, (0.0, 1.0))
    check_mixing(net, 9.0, (0.2, 0.9))
    check_mixing(net, 0.0, (0.2, 0.9))


def check_mixing(net: str, rate: float, keep: tuple[float, float]) -> None:
    trained, probe = made(net)
    expected = alphas(trained, probe, rate, *keep)
    if rate == 0.7:
        assert all(0.3 < alpha < 1 for alpha in expected)
    before = {b.name: b.view.clone() for b in trained.network.blocks}
    params = {"rate": rate, "keep": list(keep), "threshold": THRESHOLD}
    fire(trained, probe, **params)
    for block in trained.network.blocks:
        alpha = expected[block.spec.member or 0]
        theta, start = before[block.name].numpy(), law(block, torch.Generator()).numpy()
        wanted = theta if block.role == "buffer" else shrink_perturb_twin(theta, start, 1 - alpha)
        np.testing.assert_allclose(block.view.numpy(), wanted, rtol=1e-4, atol=1e-6)
