"""Distill: its term against the past self kept beside, when it lasts, and its reset."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.sac_networks import Temperature
from rlplast.core.errors import BadWeights, NothingToEdit
from rlplast.core.network.network import Network
from tests.cases import fire, probe
from tests.methods.driven import Driven, assert_close, gradients
from tests.models import FAMILIES, assert_same, build

UPDATES = 4  # that the term lasts


def driven(family: str, batches: list[Tensor], **params: Any) -> Driven:
    """A network whose hook fires after updates 2 and 12, and that notes what its term reads."""
    module = build(family)
    draw = probe(Network("net", module))
    note = lambda size, generator: batches.append(draw(size, generator)) or batches[-1]  # noqa: E731
    params = {"updates": UPDATES, "batch": 8, "coef": 0.7} | params
    row = {"method": "distill", "at": ["2 updates", "12 updates"], "params": params}
    return Driven(module, note, hook=row).move()


def naive_term(now: nn.Module, past: nn.Module, x: Tensor, coef: float) -> Tensor:
    """The mean square over samples and outputs; of a stack the sum over members."""
    f, g = now.eval()(x), past.eval()(x)
    now.train()
    if isinstance(now, FAMILIES["stacked"]):
        return coef * sum((a - b).square().mean() for a, b in zip(f, g, strict=True))
    return coef * (f - g).square().mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_term_is_the_distance_to_the_past_self_and_falls_to_nothing(family: str) -> None:
    batches: list[Tensor] = []
    made = driven(family, batches)
    past = copy.deepcopy(made.module)
    assert made.step() == []
    assert made.term() is None
    (receipt,) = made.step()
    assert receipt.sfe > 0
    twin = copy.deepcopy(made.module)
    for passed in range(UPDATES):
        found = made.gradients()
        expected = naive_term(twin, past, batches[-1], 0.7 * (1 - passed / UPDATES))
        assert float(expected.detach()) > 0
        assert_close(found, gradients(twin, expected))
        made.step()
    read = len(batches)
    for _ in range(11 - made.updates):
        made.step()
        assert made.term() == 0
    assert len(batches) == read  # and it costs nothing
    past = copy.deepcopy(made.module)
    made.step()  # a second past self takes the place of the first
    found = made.term()
    torch.testing.assert_close(found, naive_term(made.module, past, batches[-1], 0.7))


def test_a_firing_is_that_of_the_reset() -> None:
    for reset in ("fire", "full_reset", "head_reset", "shrink_perturb"):
        made = driven("mlp", [], reset=reset)
        before = copy.deepcopy(made.module.state_dict())
        twin = copy.deepcopy(made.module)
        initial = {b.name: made.network.initial[b.name] for b in made.network.blocks}
        other = Network("net", twin, torch.optim.SGD(twin.parameters(), lr=0.1), initial=initial)
        rlplast.apply(reset, other)
        made.step(2)
        after, wanted = made.module.state_dict(), twin.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {n for n in before if not torch.equal(before[n], wanted[n])}, reset
        if reset == "fire":  # which draws nothing
            assert_same(dict(after), dict(wanted))


def test_a_network_that_is_not_finite_is_not_imitated() -> None:
    made = driven("mlp", [])
    with torch.no_grad():
        made.module.get_parameter("2.bias")[0] = torch.nan
    before = copy.deepcopy(made.module.state_dict())
    with pytest.raises(BadWeights, match=r"net\.2\.bias"):
        fire("distill", made.network)
    for name, tensor in made.module.state_dict().items():
        assert tensor.equal(before[name]) or name == "2.bias"
    row = {"method": "distill", "at": "2 updates"}
    with pytest.raises(NothingToEdit, match="'alpha'"):
        rlplast.Hooks([row], Network("alpha", Temperature(1.0)), "9 updates", probe=made.x)
