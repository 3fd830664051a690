"""ReGraMa against its slow twin and against gradients by hand; when it must do nothing."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.methods.redo import redo
from rlplast.methods.regrama import inactive, regrama
from tests.cases import about
from tests.methods.nets import changed, snapshot
from tests.methods.unit_nets import NETS, Trained, check_recycling, normal, prepared, probe, silent
from tests.models import assert_same
from tests.naive import regrama as naive


def fired(made: Trained, x: Tensor, scale: float = 1.0, **options: Any) -> rlplast.Receipt:
    def loss(batch: Tensor) -> Tensor:
        return made.module(batch).square().mean() * scale

    return regrama(made.network, inputs=x, loss=loss, **options)


@pytest.mark.parametrize("net", NETS)
def test_weights_norm_entries_and_moments_are_the_twins(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for threshold, overlap, optimizer in ((0.0, "redraw", "sgd_momentum"), (0.5, "zero", "adam")):
        made, x = prepared(net, optimizer), probe(net)
        found = made.gradients(x)
        masks = {name: naive.inactive(found[f"{name}.weight"], threshold) for name in made.groups}
        for name, mask in masks.items():
            assert all(mask[: silent(len(mask))]), name  # what never fires never learns
            assert not all(mask), name
        with about(threshold, overlap, optimizer), monkeypatch.context() as patched:
            fire = partial(fired, made, x, threshold=threshold, overlap=overlap)
            check_recycling(made, masks, overlap, fire, patched)


def test_inactive_units_are_the_twins() -> None:
    shares = {1.0: 7, 0.5: 3, 0.3: 2, 0.1: 0}
    for shape, threshold in product(((7, 5), (7, 3, 2, 2)), (0.0, 0.5, 1.0, 1e9)):
        gradient = normal(*shape, seed=4)
        gradient[2] = 0
        gradient[5] *= 0.3
        for max_share, at_most in shares.items():
            expected = naive.inactive(gradient, threshold, at_most)
            found = inactive(gradient, threshold, max_share).tolist()
            assert found == expected, (shape, threshold, max_share)


def test_scaling_the_loss_changes_nothing() -> None:
    one, x = prepared("mlp"), probe("mlp")
    units = fired(one, x, threshold=0.5).units
    for scale in (1e-12, 1e6):
        other = prepared("mlp")
        assert fired(other, x, scale, threshold=0.5).units == units
        assert_same(one.state(), other.state())


def test_a_unit_without_outgoing_weights_scores_0_though_it_fires() -> None:
    made, x = Trained("mlp").train(3), probe("mlp")
    with torch.no_grad():
        made.module.get_parameter("2.weight")[:, 4] = 0
        made.module.get_parameter("0.bias")[4] = 10
    assert redo(made.network, inputs=x, threshold=0).units == {"0": 0, "2": 0}
    assert fired(made, x, threshold=0).units == {"0": 1, "2": 0}


def test_a_second_firing_without_an_update_in_between_resets_nothing() -> None:
    made, x = prepared("mlp"), probe("mlp")
    row = {"method": "regrama", "every": "1 env_steps", "params": {"threshold": 0.0}}
    hooks = rlplast.Hooks(
        [row], made.network, "100 env_steps", probe=x, loss=lambda b: made.module(b).square().mean()
    )
    hooks.step(env_steps=0, updates=5)
    [first] = hooks.step(env_steps=1, updates=6)
    assert first.units == {"0": 2, "2": 2}
    before = made.state()
    [again] = hooks.step(env_steps=2, updates=6)
    assert again.units == {"0": 0, "2": 0}
    assert_same(before, made.state())
    [later] = hooks.step(env_steps=3, updates=7)  # nothing was trained: they still score 0
    assert later.units == first.units


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("regrama", {"threshold": 1e9}),
        ("redo", {"threshold": 1e9, "score": "gxd"}),
        ("renew_weights", {"share": 1}),
    ],
)
def test_what_the_loss_does_not_reach_is_left(method: str, params: dict[str, Any]) -> None:
    net = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(3, 4), nn.Linear(4, 2)])
    specs = [rlplast.UnitSpec("0", ("1",)), rlplast.UnitSpec("2", ("3",))]
    network, before = rlplast.Network("net", net, units=specs), snapshot(net)
    loss = lambda x: net[1](torch.relu(net[0](x))).square().mean()  # noqa: E731
    receipt = rlplast.apply(method, network, inputs=normal(5, 3), loss=loss, **params)
    assert receipt.units in (None, {"0": 4, "2": 0})
    assert {name[0] for name in changed(before, net)} == {"0", "1"}
