"""Hooks in Stable-Baselines3: bit for bit as bare hooks that are told by hand what was read."""

from typing import Any

import pytest

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from tests.adapters.by_hand import ByHand, Played, Replayed
from tests.adapters.hosts import CBP, REDO, RELU, sb3_model, silence
from tests.marks import slow

SEED = 3
HOOKS = [
    REDO,
    CBP,
    {"method": "fire", "at": "0%", "params": {"iterations": 5}},
    {"method": "full_reset", "at": "11 updates"},
    {"method": "shrink_perturb", "at": "50%", "params": {"coef": 0.5}},
    {"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 1e-4}},
]


@pytest.mark.parametrize("name", ["TD3", "PPO", slow("SAC"), slow("DQN")])
def test_in_sb3(name: str, monkeypatch: pytest.MonkeyPatch):
    model = sb3_model(name, policy_kwargs=RELU)
    networks = find_networks(model)
    for network in networks.values():
        silence(network)
    seen: Any = Played(model) if name == "PPO" else Replayed(model)
    by_hand = ByHand(monkeypatch, HOOKS, SEED, seen.read, seen.probe(networks))
    callback = HookCallback(HOOKS, seed=SEED)
    model.learn(64, callback=callback)
    single = [r for r in callback.receipts if r.log_factor is None and not r.firings > 1]
    assert {r.method for r in callback.receipts} == {hook["method"] for hook in HOOKS}
    assert {r.clock.updates for r in single if r.method == "full_reset"} == {11}
    assert {r.clock.updates for r in single if r.method == "fire"} == {0}
    assert by_hand.updates >= 16 and by_hand.changed == set(networks)
    # An actor that is delayed reads nothing in between.
    odd = range(1, by_hand.updates + 1, 2)
    assert by_hand.empty == [(n, "actor") for n in odd if name == "TD3"]
