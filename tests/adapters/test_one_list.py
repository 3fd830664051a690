"""One list of hooks in every trainer: equal weights give equal receipts."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.adapters.sb3 import HookCallback
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from rlplast.training.config import read_yaml
from tests.adapters.hosts import (
    HOSTS,
    MLP_HOSTS,
    QUIET_LIGHTNING,
    WITHOUT_ORDER,
    Fit,
    give,
    hook_callback,
    mlp,
    sb3_model,
)
from tests.adapters.twins import assert_same_weights, copy_weights, plain, twin

pytestmark = QUIET_LIGHTNING

LIST = Path(__file__).with_name("hooks.yaml")
WITH_SWR = Path(__file__).with_name("hooks_swr.yaml")


class Shadow:
    """Beside each `Hooks` of a trainer, a bare one on copies with the same weights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, configs: list[Any]) -> None:
        self.configs = configs
        self.pairs: dict[int, tuple[Hooks, dict[str, Network], dict[str, Network]]] = {}
        self.bare: set[int] = set()
        self.calls: Counter[str] = Counter()
        for method in ("fire", "after_update", "flush"):
            monkeypatch.setattr(Hooks, method, self.beside(method, getattr(Hooks, method)))

    def beside(self, method: str, original: Any) -> Any:
        def call(hooks: Hooks, *args: Any) -> Any:
            if id(hooks) in self.bare:
                return original(hooks, *args)
            bare, real, copies = self.pair(hooks)
            copy_weights(real, copies)
            args = args or (hooks.clock,)
            expected, found = original(bare, *args), original(hooks, *args)
            assert_same_weights(real, copies)
            if found is not None:
                assert [plain(r) for r in found] == [plain(r) for r in expected]
                self.calls[method] += len(found)
            return found

        return call

    def pair(self, hooks: Hooks) -> Any:
        if id(hooks) not in self.pairs:
            real = {n.name: n for hook in hooks.hooks for n in hook.networks}
            copies = {name: twin(network) for name, network in real.items()}
            bare = Hooks(self.configs, copies, hooks.total, hooks.seed, horizon=hooks.horizon)
            self.pairs[id(hooks)] = bare, real, copies
            self.bare.add(id(bare))
        return self.pairs[id(hooks)]


@pytest.mark.parametrize(
    ("host", "path"),
    [(h, LIST if h in WITHOUT_ORDER else WITH_SWR) for h in HOSTS] + [("dqn", LIST)],
    ids=lambda v: getattr(v, "stem", v),
)
def test_list_fires_as_bare_hooks_on_copies_do(
    host: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shadow = Shadow(monkeypatch, read_yaml(path))
    receipts = HOSTS[host](path, tmp_path, None)
    assert shadow.calls["fire"] + shadow.calls["flush"] == len(receipts)
    (hooks,) = [hooks for hooks in shadow.pairs.values()]
    assert_fired_on_time(receipts, hooks[0].total.unit, int(hooks[0].total.value))


def assert_fired_on_time(receipts: list[Receipt], unit: str, total: int) -> None:
    mine = [r for r in receipts if r.network == receipts[0].network]
    single = [r for r in mine if r.log_factor is None]
    assert single[0].method == "fire"
    assert sorted(r.method for r in single) == ["fire", "full_reset", "shrink_perturb"]
    at = {r.method: r.clock for r in single}
    assert all(count == 0 for count in dataclasses.asdict(at["fire"]).values())
    assert at["full_reset"].updates == 7
    assert total / 2 <= at["shrink_perturb"][unit] < total
    updates = max(r.clock.updates for r in mine)
    assert updates >= 15
    assert sum(r.firings for r in mine if r.log_factor is not None) == updates


@pytest.mark.parametrize("host", MLP_HOSTS)
def test_first_firing_on_equal_weights_leaves_one_receipt_everywhere(host: str, tmp_path: Path):
    weights = [p.detach().clone() for p in mlp().parameters()]
    bare = Hooks(read_yaml(LIST), Network("model", mlp(weights), []), "100 updates")
    (expected,) = bare.step(updates=0)
    found = HOSTS[host](LIST, tmp_path, weights)[0]
    kept = {"network": "", "followers": {}, "clock": None}
    assert plain(found) | kept == plain(expected) | kept
    assert found.sfe > 1


def sb3_weights(hooks: Any, folder: Path) -> list[torch.Tensor]:
    model = sb3_model("DQN", policy_kwargs={"net_arch": [256, 256]})
    give(model.q_net, start())
    model.learn(4, callback=HookCallback(hooks, seed=SEED))  # before the first update
    return list(model.q_net.parameters())


def trainer_weights(host: str) -> Any:
    def run(hooks: Any, folder: Path) -> list[torch.Tensor]:
        net, callback = mlp(start()), hook_callback(host, hooks, seed=SEED)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.0)
        Fit(host, folder, net, callback, optimizer=optimizer, max_steps=2).train()
        return list(net.parameters())

    return run


SEED = 7


def start() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(p.shape, generator=generator) for p in mlp().parameters()]


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (sb3_weights, "q"),
        (trainer_weights("hf"), "model"),
        (trainer_weights("lightning"), "model"),
    ],
    ids=["sb3", "hf_trainer", "lightning"],
)
def test_seed_of_a_callback_reaches_its_draws(weights: Any, name: str, tmp_path: Path):
    hooks = [{"method": "full_reset", "at": "0%"}]
    found = weights(hooks, tmp_path)
    drawn = {}
    for seed in (0, SEED):
        bare = mlp(start())
        Hooks(hooks, Network(name, bare, []), "100 updates", seed).step(updates=0)
        drawn[seed] = [torch.equal(a, b) for a, b in zip(found, bare.parameters(), strict=True)]
    assert all(drawn[SEED]) and not any(drawn[0])
