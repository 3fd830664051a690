"""Distill: its term against the past self kept beside, when it lasts, and whole runs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng
from rlplast.run import api
from tests.cases import fire, probe
from tests.every_kind import small_run
from tests.marks import slow
from tests.models import FAMILIES, assert_same
from tests.runs import Killed, at_step, final, kill, lines

UPDATES = 4  # that the term lasts
BATCH = 8


class Driven:
    """A network with the hook in a hand-written loop; it fires after updates 2 and 12."""

    def __init__(self, family: str, **params: Any) -> None:
        with preserve_global_rng():
            torch.default_generator.manual_seed(0)
            self.module = FAMILIES[family]()
        for name, buffer in self.module.named_buffers():  # statistics of some data
            if name.endswith("running_mean"):
                buffer.add_(0.3)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05)
        self.network = Network("net", self.module, optimizer)
        self.batches: list[Tensor] = []
        draw = probe(self.network)

        def noted(size: int, generator: torch.Generator) -> Tensor:
            self.batches.append(draw(size, generator))
            return self.batches[-1]

        self.penalties = rlplast.Penalties([], self.network, probe=noted)
        params = {"updates": UPDATES, "batch": BATCH, "coef": 0.7} | params
        row = {"method": "distill", "at": ["2 updates", "12 updates"], "params": params}
        self.hooks = rlplast.Hooks(
            [row], self.network, "20 updates", probe=noted, penalties=self.penalties
        )

    def term(self) -> Tensor | None:
        return self.penalties.of("net")


def naive_term(now: nn.Module, past: nn.Module, x: Tensor, coef: float) -> Tensor:
    """The mean square over samples and outputs; of a stack the sum over members."""
    f, g = now.eval()(x), past.eval()(x)
    now.train()
    if isinstance(now, FAMILIES["stacked"]):  # type: ignore[arg-type]
        return coef * sum((a - b).square().mean() for a, b in zip(f, g, strict=True))  # type: ignore
    return coef * (f - g).square().mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_term_is_the_distance_to_the_past_self_and_falls_to_nothing(family: str) -> None:
    driven = Driven(family)
    past = copy.deepcopy(driven.module)
    assert driven.hooks.step(updates=1) == []
    assert driven.term() is None
    (receipt,) = driven.hooks.step(updates=2)
    assert receipt.sfe > 0
    twin = copy.deepcopy(driven.module)
    for passed in range(UPDATES):
        driven.module.zero_grad()
        twin.zero_grad()
        found = driven.term()
        assert found is not None
        weight = 0.7 * (1 - passed / UPDATES)
        expected = naive_term(twin, past, driven.batches[-1], weight)
        torch.testing.assert_close(found, expected)
        assert float(found.detach()) > 0
        found.backward()
        expected.backward()
        for name, parameter in driven.module.named_parameters():
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
        driven.hooks.step(updates=3 + passed)
    read = len(driven.batches)
    for later in range(2 + UPDATES, 12):
        driven.hooks.step(updates=later)
        assert driven.term() == 0
    assert len(driven.batches) == read  # and it costs nothing
    past = copy.deepcopy(driven.module)
    driven.hooks.step(updates=12)  # a second past self takes the place of the first
    found = driven.term()
    assert found is not None
    torch.testing.assert_close(found, naive_term(driven.module, past, driven.batches[-1], 0.7))


def test_a_firing_is_that_of_the_reset() -> None:
    for reset in ("fire", "full_reset", "head_reset", "shrink_perturb"):
        driven = Driven("mlp", reset=reset)
        with torch.no_grad():
            for parameter in driven.module.parameters():
                parameter.add_(0.1)
        before = copy.deepcopy(driven.module.state_dict())
        twin = copy.deepcopy(driven.module)
        initial = {b.name: driven.network.initial[b.name] for b in driven.network.blocks}
        other = Network("net", twin, torch.optim.SGD(twin.parameters(), lr=0.1), initial=initial)
        rlplast.apply(reset, other)
        driven.hooks.step(updates=2)
        after, wanted = driven.module.state_dict(), twin.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {n for n in before if not torch.equal(before[n], wanted[n])}, reset
        if reset == "fire":  # which draws nothing
            assert_same(dict(after), dict(wanted))


def test_what_cannot_be_imitated_is_named(tmp_path: Path) -> None:
    driven = Driven("mlp")
    with torch.no_grad():
        driven.module.get_parameter("2.bias")[0] = torch.nan
    before = copy.deepcopy(driven.module.state_dict())
    with pytest.raises(BadWeights, match=r"net\.2\.bias"):
        fire("distill", driven.network)
    for name, tensor in driven.module.state_dict().items():
        assert tensor.equal(before[name]) or name == "2.bias"
    api.train(config("sac"), tmp_path / "run")
    receipts = lines(tmp_path / "run", "receipts")
    assert [row["network"] for row in receipts] == ["actor", "critic"]
    with pytest.raises(NothingToEdit, match="'temperature'"):
        api.train(config("sac", networks=["temperature"]), tmp_path / "other")


def config(kind: str, **changes: Any) -> dict[str, Any]:
    row = {"method": "distill", "at": "40%", "params": {"updates": 9, "batch": 8}} | changes
    none = {"penalties": []} if kind == "supervised" else {}
    return small_run(kind, {}, hooks=[row], metrics={"every": None}, **none)


@pytest.mark.parametrize("kind", ["dqn", slow("sac"), slow("supervised")])
def test_killed_during_a_distillation_and_resumed_equals_through(kind: str, tmp_path: Path) -> None:
    steps = 0
    fired: list[int] = []

    def count(loop: Any) -> None:
        nonlocal steps
        steps += 1
        if not fired and (tmp_path / "through/receipts.jsonl").read_text():
            fired.append(steps)

    run = config(kind) | {"checkpoint": {"every": "1 updates", "keep": 100}}
    api.train(run, tmp_path / "through", observer=count)
    logged = [row for row in lines(tmp_path / "through", "metrics") if "train/loss" in row]
    seen = [row["train/penalty"] for row in logged if "train/penalty" in row]
    assert 0 < len(seen) < len(logged)
    assert max(seen) > 0
    with pytest.raises(Killed):
        api.train(run, tmp_path / "killed", observer=at_step(fired[0] + 4, kill))
    api.resume(tmp_path / "killed")
    assert final(tmp_path / "killed") == final(tmp_path / "through")
