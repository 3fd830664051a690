"""Selective weight reinitialisation against its slow twin; which entries, how many, what else."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import NothingToEdit
from tests.cases import about
from tests.methods.unit_nets import NETS, Trained, probe
from tests.naive.renew_weights import renewed


def fired(made: Trained, x: Tensor, **params: Any) -> rlplast.Receipt:
    loss = lambda batch: made.module(batch).square().mean()  # noqa: E731
    return rlplast.apply("renew_weights", made.network, inputs=x, loss=loss, seed=5, **params)


@pytest.mark.parametrize("net", NETS)
def test_entries_and_their_moments_are_the_twins(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for utility, chance in product(("gradient", "magnitude"), (0.25, 0.75)):
        with about(utility, chance), monkeypatch.context() as patched:
            compare(net, utility, chance, patched)


def compare(net: str, utility: str, chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = Trained(net, "adam").train(3), probe(net)
    found = made.gradients(x)
    before, moments = made.state(), made.moments()
    blocks = made.network.trainable()
    fresh = {b.name: torch.full(b.view.shape, 7.0 + i) for i, b in enumerate(blocks)}
    expected = {
        b.name: renewed(
            b.view, found[b.name] if utility == "gradient" else None, fresh[b.name], 0.3, chance
        )
        for b in blocks
    }
    monkeypatch.setattr(made.network, "fresh", lambda block, generator: fresh[block.name])
    monkeypatch.setattr(torch, "rand", lambda *shape, generator: torch.tensor(chance))
    touched = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in before.items()}
    for block in blocks:
        whole = touched[f"{block.path}.{block.spec.tensor}"]
        block.like(whole)[...] = expected[block.name] >= 7
    receipt = fired(made, x, share=0.3, utility=utility)
    for block in blocks:
        assert torch.equal(block.view, expected[block.name]), block.name
    made.assert_edited_alone(touched, before, moments)
    assert receipt.entries_touched == sum(int(t.sum()) for t in touched.values())
    assert (receipt.optimizer_policy, receipt.followers) == ("touched", {})


def test_means_are_0_and_1_for_scales() -> None:
    made = Trained("conv_batchnorm").train(3)
    fired(made, probe("conv_batchnorm"), share=1, value="mean")
    for block in made.network.trainable():
        assert (block.view == (block.role == "scale")).all(), block.name


def test_each_tensor_gets_its_share_on_average() -> None:
    params: dict[str, Any] = {"share": 0.4, "utility": "magnitude", "value": "mean"}
    counts = [
        rlplast.apply("renew_weights", nn.Linear(16, 1), seed=seed, **params).entries_touched
        for seed in range(100)
    ]
    assert set(counts) == {6, 8}  # 6 or 7 of 16, and 0 or 1 of 1
    assert sum(counts) / 100 == pytest.approx(0.4 * 17, abs=0.35)


def test_magnitude_reads_no_data_and_parameters_of_no_layer_are_left() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net.get_parameter("1.weight").fill_(0.125)
    rlplast.apply("renew_weights", rlplast.Network("net", net), utility="magnitude", share=1)
    assert net.get_parameter("1.weight").tolist() == [0.125]
    alpha = nn.Module()
    alpha.register_parameter("log_alpha", nn.Parameter(torch.zeros(())))
    with pytest.raises(NothingToEdit, match="renew_weights"):
        rlplast.apply("renew_weights", rlplast.Network("alpha", alpha), utility="magnitude")
