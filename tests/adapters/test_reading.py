"""Methods that read activations, in every trainer: as bare hooks told by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.adapters.sb3_networks import find_networks
from tests.adapters.by_hand import Batches, ByHand, Played, Replayed
from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    WithLoss,
    hf_trainer,
    lightning_module,
    lightning_trainer,
    loader,
)
from tests.adapters.readers import net, sb3
from tests.adapters.toys import INSIDE, READING, row, silence

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

SB3 = ("DQN", "SAC", "TD3", "PPO")


def in_sb3(name: str, hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[ByHand, Any]:
    from rlplast.adapters.sb3 import HookCallback

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
@pytest.mark.parametrize("name", SB3)
def test_sb3_resets_what_bare_hooks_reset(name: str, method: str, monkeypatch: pytest.MonkeyPatch):
    by_hand, callback = in_sb3(name, [row(method)], monkeypatch)
    assert by_hand.updates >= 16 and by_hand.changed > 0
    fired = {r.network for r in callback.receipts}
    assert fired == set(callback.driver.networks) - {"temperature"}
    rests = {n for n, _ in by_hand.empty}
    delayed = name == "TD3" and method in INSIDE
    assert rests == ({n for n in range(1, by_hand.updates + 1) if n % 2} if delayed else set())
    assert {name for _, name in by_hand.empty} == ({"actor"} if delayed else set())


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("method", READING)
def test_hf_resets_what_bare_hooks_reset(
    method: str, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from rlplast.adapters.hf_trainer import HookCallback

    module = net()
    seen = Batches(module)
    by_hand = ByHand(monkeypatch, [row(method)], seen.read, seen.draw, at_step=False)

    class Seen(WithLoss):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            if torch.is_grad_enabled():
                seen.see(x)
            return super().forward(x, labels)

    callback = HookCallback([row(method)], networks={"model": "net"})
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulation}
    hf_trainer(tmp_path, Seen(module), [callback], **options).train()
    assert by_hand.updates == 20 and by_hand.changed > 0 and by_hand.empty == []
    assert callback.receipts


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("method", READING)
def test_lightning_resets_what_bare_hooks_reset(
    method: str, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from rlplast.adapters.lightning import HookCallback

    module = lightning_module(net())
    seen = Batches(module.net)
    by_hand = ByHand(monkeypatch, [row(method)], seen.read, seen.draw, at_step=False)
    step = module.training_step
    module.training_step = lambda batch: (seen.see(batch["x"]), step(batch))[1]
    callback = HookCallback([row(method)], networks={"model": "net"})
    options: dict[str, Any] = {"accumulate_grad_batches": accumulation}
    lightning_trainer(tmp_path, [callback], **options).fit(module, loader())
    assert by_hand.updates == 20 and by_hand.changed > 0 and by_hand.empty == []
    assert callback.receipts
