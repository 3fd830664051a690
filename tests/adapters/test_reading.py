"""Methods that read activations, in every trainer: as bare hooks told by hand."""

from pathlib import Path
from typing import Any

import pytest

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from tests.adapters.by_hand import Batches, ByHand, Played, Replayed
from tests.adapters.hosts import QUIET_LIGHTNING, Fit, hook_callback
from tests.adapters.readers import net, sb3
from tests.adapters.toys import INSIDE, READING, row, silence
from tests.marks import slow_but

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

SB3 = ("DQN", "SAC", "TD3", "PPO")


def in_sb3(name: str, hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[ByHand, Any]:
    model = sb3(name)
    networks = find_networks(model)
    for network in networks.values():
        silence(network)
    seen: Any = Played(model) if name == "PPO" else Replayed(model)
    probe = seen.draw if name == "PPO" else seen.probe(networks)
    by_hand = ByHand(monkeypatch, hooks, seen.read, probe)
    callback = HookCallback(hooks, seed=3)
    model.learn(64, callback=callback)
    return by_hand, callback


@pytest.mark.parametrize("method", READING)
@pytest.mark.parametrize("name", slow_but(["SAC", "PPO"], SB3))
def test_sb3_resets_what_bare_hooks_reset(name: str, method: str, monkeypatch: pytest.MonkeyPatch):
    by_hand, callback = in_sb3(name, [row(method)], monkeypatch)
    assert by_hand.updates >= 16 and by_hand.changed > 0
    fired = {r.network for r in callback.receipts}
    assert fired == set(callback.driver.networks) - {"temperature"}
    rests = {n for n, _ in by_hand.empty}
    delayed = name == "TD3" and method in INSIDE
    assert rests == ({n for n in range(1, by_hand.updates + 1) if n % 2} if delayed else set())
    assert {name for _, name in by_hand.empty} == ({"actor"} if delayed else set())


# Scheduled ones read the last of an update's batches, the others all of them.
@pytest.mark.parametrize(("method", "accumulation"), [(m, 3) for m in READING] + [("cbp", 1)])
@pytest.mark.parametrize("host", ["hf", "lightning"])
def test_trainer_resets_what_bare_hooks_reset(
    host: str, method: str, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module = net()
    seen = Batches(module)
    by_hand = ByHand(monkeypatch, [row(method)], seen.read, seen.draw, at_step=False)
    callback = hook_callback(host, [row(method)], networks={"model": "net"})
    Fit(host, tmp_path, module, callback, accumulation=accumulation).train()
    assert by_hand.updates == 20 and by_hand.changed > 0 and by_hand.empty == []
    assert callback.receipts
