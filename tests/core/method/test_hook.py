"""One hook: the networks it works on, what it adds up, and the method's own counters."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.context import Context
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.method import Method, State
from rlplast.core.method.method import method as register
from rlplast.core.network.edits import Assign, Edit
from rlplast.core.network.network import Network
from rlplast.methods import recycling
from tests.core.method.networks import networks
from tests.models import build, subject
from tests.syncs import host_reads

pytestmark = pytest.mark.usefixtures("own_methods")


def test_networks_with_nothing_to_edit_are_left_out_unless_named() -> None:
    for method in ("fire", "head_reset", "swr"):
        for schedule in ({"at": "50%"}, {"every": "1 updates"}):
            config = {"method": method, **schedule}
            hooks = Hooks([config], networks(), "10 updates")
            assert [n.name for n in hooks.hooks[0].networks] == ["actor", "critic"]
            fired = [r for update in range(1, 10) for r in hooks.step(updates=update)]
            assert [r.network for r in fired + hooks.flush()] == ["actor", "critic"]
            for named in (["temperature"], ["actor", "temperature"]):
                with pytest.raises(NothingToEdit, match=f"{method} .*'temperature'"):
                    Hooks([config | {"networks": named}], networks(), "10 updates")
            with pytest.raises(NothingToEdit, match="'temperature'"):
                Hooks([config], {"temperature": networks()["temperature"]}, "10 updates")
    config = {"method": "head_reset", "at": "50%", "params": {"layers": 4}}
    with pytest.raises(ConfigError, match=r"head_reset\.layers.*actor"):  # nor other mistakes
        Hooks([config], networks(), "10 updates")


@pytest.fixture
def counting(own_methods: None) -> None:
    @register("counting", source="a test")
    @dataclass(frozen=True)
    class Counting(Method):
        """Set the first row of each weight to 7, and count it."""

        policies = ("keep", "leave")

        def setup(self, network: Network, blocks: Any) -> State:
            names = [b.layer for b in blocks if b.role == "weight"]
            return {f"count/{name}": torch.zeros((), dtype=torch.int64) for name in names}

        def plan(self, context: Context, state: State) -> list[Edit]:
            edits: list[Edit] = []
            for block in context.blocks:
                if block.role == "weight":
                    row = torch.full((1, *block.view.shape[1:]), 7.0)
                    counter = state[f"count/{block.layer}"]
                    edits.append(Assign(block, row, rows=torch.tensor([0])))
                    edits.append(Assign(counter, counter + 1))
            return edits


@pytest.mark.usefixtures("counting")
def test_receipts_tell_the_counters_of_a_firing_or_of_all_updates_since_the_last() -> None:
    def hooks_of(period: int) -> Hooks:
        row = {"method": "counting", "every": f"{period} updates"}
        return Hooks([row], subject("mlp").network, "10 updates")

    hooks = hooks_of(2)
    receipts = [r for update in range(1, 6) for r in hooks.step(updates=update)]
    assert [r.row()["units"] for r in receipts] == [{"0": 1, "2": 1, "4": 1}] * 2
    assert receipts[0].entries_touched == 5 + 6 + 6
    hooks = hooks_of(1)
    hooks.step(updates=3)
    saved = hooks.state_dict()
    assert saved["counting every=1 updates"]["states"]["net"]["count/0"] == 3
    [receipt] = hooks.flush(Clock(updates=3))
    assert (receipt.firings, receipt.units) == (3, {"0": 3, "2": 3, "4": 3})
    assert receipt.entries_touched == 5 + 6 + 6
    hooks.step(updates=4)
    [receipt] = hooks.flush(Clock(updates=4))
    assert receipt.units == {"0": 1, "2": 1, "4": 1}


@pytest.mark.usefixtures("counting")
def test_an_update_with_hooks_and_ticks_waits_for_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recycling, "by_rows", lambda mask: False)  # which is asked on a CPU only
    made = subject("mlp")
    rlplast.replace_layers(made.module, life=[2, 3], recovery=[2, 3], clear_moments=True)
    network = Network("net", made.module, made.optimizer)
    rows = [{"method": m, "every": "1 updates"} for m in ("counting", "swr")]
    hooks = Hooks(rows, network, "100 updates")
    with host_reads() as found:
        for update in range(1, 9):
            hooks.step(updates=update)
    assert found == []


def test_a_network_of_which_nothing_trains_may_tick() -> None:
    module = build("mlp").requires_grad_(False)
    rlplast.replace_layers(module, life=[5, 5])
    network = Network("net", module)
    Hooks([], network, "10 updates").step(updates=2)
    layer: Any = module.get_submodule("0")
    assert (layer.life == 3).all()


def test_ticks_come_before_all_hooks_and_leave_no_receipt() -> None:
    module = build("mlp")
    rlplast.replace_layers(module, life=[5, 5], recovery=[2, 2])
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    rows = [{"method": "swr", "every": "1 updates"}, {"method": "fire", "at": "50%"}]
    hooks = Hooks(rows, network, "20 updates")
    keys = ["layers/0 lifecycle", "swr every=1 updates", "fire at=50%"]
    assert [h.key for h in hooks.hooks] == keys
    assert [h.key for h in hooks.every_update] == keys[:2]
    receipts = [r for update in range(1, 20) for r in hooks.step(updates=update)] + hooks.flush()
    assert [r.method for r in receipts] == ["fire", "swr"]
    with host_reads() as found:
        assert hooks.flush() == []
    assert found == ["tolist"] * 2  # one per hook and network
