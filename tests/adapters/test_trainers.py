"""Hooks in the Hugging Face Trainer and in Lightning alike: when they fire, how a run resumes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    UPDATES,
    Fit,
    Killed,
    hook_callback,
    killer,
    same,
)
from tests.marks import slow

pytestmark = [*QUIET_LIGHTNING, pytest.mark.parametrize("host", ["hf", "lightning"])]

RESET = {"method": "full_reset"}
SWR = {"method": "swr", "every": "1 updates", "params": {"coef": 1e-2}}
HOOKS = [
    {"method": "fire", "at": "0%"},
    SWR,
    RESET | {"at": "14 updates"},
    {"method": "shrink_perturb", "at": "75%"},
]
NET = {"model": "net"}


def small(dropout: float = 0.3) -> nn.Sequential:
    """With dropout, so that torch's generator matters."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 10))


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_update_is_one_optimizer_step_of_several_batches(
    host: str, accumulation: int, tmp_path: Path
):
    callback = hook_callback(host, [RESET | {"every": "3 updates"}])
    fit = Fit(host, tmp_path, small(), callback, max_steps=10, accumulation=accumulation).train()
    steps = fit.trainer.state.global_step if host == "hf" else fit.trainer.global_step
    assert callback.driver.clock.updates == steps == 10
    assert [r.clock.updates for r in callback.receipts] == [3, 6, 9]


def test_hook_that_never_fires_changes_no_bit(host: str, tmp_path: Path):
    callback = hook_callback(host, [RESET | {"at": "3 phase"}])
    plain = Fit(host, tmp_path, small()).train()
    hooked = Fit(host, tmp_path, small(), callback).train()
    assert callback.receipts == [] and callback.driver.clock.updates == UPDATES
    assert same(plain.state(), hooked.state())


def test_epochs_count_when_the_next_one_begins(host: str, tmp_path: Path):
    callback = hook_callback(host, [RESET | {"every": "1 epochs"}])
    Fit(host, tmp_path, small(), callback, epochs=3).train()
    clocks = [(r.clock.epochs, r.clock.updates) for r in callback.receipts]
    assert clocks == [(1, 8), (2, 16)]  # 64 rows in batches of 8; nothing fires at the end
    assert callback.driver.clock.updates == 24


def test_summaries_come_with_the_logs(host: str, tmp_path: Path):
    callback = hook_callback(host, [SWR], networks=NET)
    Fit(host, tmp_path, small(), callback).train()
    summaries = [(r.clock.updates, r.firings) for r in callback.receipts]
    assert summaries == [(6, 6), (12, 6), (18, 6), (20, 2)]


def test_parameter_outside_the_optimizer_is_refused(host: str, tmp_path: Path):
    net, callback = small(), hook_callback(host, [RESET | {"at": "0%"}])
    optimizer = torch.optim.Adam(net[0].parameters())
    with pytest.raises(ConfigError, match=r"model\.net\.3\.weight is trainable and in no"):
        Fit(host, tmp_path, net, callback, optimizer=optimizer).train()


def test_hook_with_a_term_of_the_loss_is_refused(host: str, tmp_path: Path):
    callback = hook_callback(host, [{"method": "persistent", "at": "50%"}], networks=NET)
    with pytest.raises(ConfigError, match=r"hooks\[0\] \(persistent\) adds a term to the loss"):
        Fit(host, tmp_path, small(), callback).train()


def test_penalty_in_the_users_own_loss_holds_the_weights(host: str, tmp_path: Path):
    def moved(coef: float) -> float:
        net = small(0.0)
        fit = Fit(host, tmp_path / str(coef), net, hook_callback(host, [], networks=NET))
        network = Network("model", net)
        row = {"method": "l2_init", "params": {"coef": coef}}
        penalties = Penalties([row], {"model": network})
        name = "forward" if host == "hf" else "training_step"
        plain = getattr(fit.module, name)

        def forward(x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = plain(x, labels)
            return found | {"loss": found["loss"] + penalties.of("model")}

        def training_step(batch: Any) -> Tensor:
            return plain(batch) + penalties.of("model")

        setattr(fit.module, name, forward if host == "hf" else training_step)
        fit.train()
        return max((b.view - network.initial[b.name]).abs().max().item() for b in network.blocks)

    assert moved(1e4) < 0.5 * moved(0.0)


@pytest.mark.parametrize("killed", [slow(9), slow(15), 17])
def test_interrupted_and_resumed_equals_uninterrupted(host: str, killed: int, tmp_path: Path):
    def fit(name: str, *others: Any) -> Fit:
        path = tmp_path / name / "receipts.jsonl"
        callback = hook_callback(host, HOOKS, receipts=path, networks=NET, seed=2)
        net = small(0.3 if host == "hf" else 0.0)  # Lightning saves no generator
        return Fit(host, path.parent, net, *others, callback, save=True)

    whole = fit("whole").train()
    with pytest.raises(Killed):
        fit("parts", killer(host, killed)).train()
    parts = fit("parts").train(resume=8 if killed < 16 else 16)
    assert same(whole.state(), parts.state())
    one, other = (lines(tmp_path / name / "receipts.jsonl") for name in ("whole", "parts"))
    assert one == other
    assert {r["method"] for r in one} == {h["method"] for h in HOOKS}
