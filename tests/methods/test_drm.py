"""drm beside a slow twin: which α it takes, and what it mixes by it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.run import api
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import observed
from tests.naive import redo as naive
from tests.naive.interventions import shrink_perturb_twin
from tests.runs import lines
from tests.sac_runs import small_sac

THRESHOLD = 0.6


def law(block: Block, generator: torch.Generator) -> Tensor:
    """An initialisation that draws nothing, so that a twin knows it."""
    return torch.linspace(-0.5, 0.3, block.view.numel()).view(block.view.shape)


def made(net: str) -> tuple[Trained, Tensor]:
    trained = Trained(net).train(3)
    trained.network.init = law
    return trained, normal(32, *NETS[net].sample, seed=77)


def fire(trained: Trained, probe: Tensor, **params: Any) -> Receipt:
    return rlplast.apply("drm", trained.network, inputs=lambda size, generator: probe, **params)


def alphas(trained: Trained, probe: Tensor, rate: float, low: float, high: float) -> list[float]:
    """α of each chain of layers, from the twin's dormant units."""
    found = observed(trained.network, probe)
    every = []
    for chain in trained.net.chains(trained.module):
        units = [u for name in chain for u in naive.dormant(found[name], THRESHOLD)]
        every.append(min(max(low, 1 - rate * sum(units) / len(units)), high))
    return every


@pytest.mark.parametrize(
    ("rate", "keep"), [(0.7, (0.0, 1.0)), (9.0, (0.2, 0.9)), (0.0, (0.2, 0.9))]
)
@pytest.mark.parametrize("net", NETS)
def test_every_parameter_is_mixed_by_the_share_of_dormant_units(
    net: str, rate: float, keep: tuple[float, float]
) -> None:
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


def test_the_more_units_are_dormant_the_less_is_kept() -> None:
    kept = []
    for silent in (0, 2, 4, 6):
        trained, probe = made("mlp")
        with torch.no_grad():
            trained.module.get_parameter("0.bias")[:silent] = -100.0
            trained.module.get_parameter("4.bias").fill_(1.0)
        trained.network.init = lambda block, generator: torch.zeros(block.view.shape)
        fire(trained, probe, keep=[0.0, 1.0])
        kept.append(float(trained.module.get_parameter("4.bias").detach()[0]))
    assert kept == sorted(kept, reverse=True)
    assert kept[0] - kept[2] == pytest.approx(2 * 4 / 12, abs=1e-4)  # k = 2, of 12 units


def test_it_is_shrink_perturb_with_that_coefficient() -> None:
    (one, probe), (other, _) = made("mlp"), made("mlp")
    (alpha,) = alphas(one, probe, 1.0, 0.2, 0.9)
    params = {"rate": 1.0, "threshold": THRESHOLD}
    receipt = fire(one, probe, **params)
    rlplast.apply("shrink_perturb", other.network, coef=1 - alpha, init="fresh")
    assert (receipt.optimizer_policy, receipt.sfe > 0) == ("network", True)
    for name, tensor in one.state().items():
        torch.testing.assert_close(tensor, other.state()[name])


def test_a_sac_perturbs_actor_and_critics_and_leaves_its_temperature(tmp_path: Path) -> None:
    row: dict[str, Any] = {"method": "drm", "at": "50%"}
    api.train(small_sac(hooks=[row]), tmp_path / "run")
    assert [r["network"] for r in lines(tmp_path / "run", "receipts")] == ["actor", "critic"]


def test_bad_values_and_networks_are_refused() -> None:
    network = Network("net", nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(NothingToEdit, match="no hidden units"):
        rlplast.apply("drm", network, inputs=lambda size, generator: normal(4, 3))
    for keep in ([0.9, 0.2], [0.1, 1.1]):
        with pytest.raises(ConfigError, match=r"keep"):
            rlplast.Hooks(
                [{"method": "drm", "at": "50%", "params": {"keep": keep}}], network, "9 updates"
            )
