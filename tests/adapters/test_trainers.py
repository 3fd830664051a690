"""Hooks in the Hugging Face Trainer and in Lightning alike: when they fire, how a run resumes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rlplast.core.errors import ConfigError
from tests.adapters.hosts import (
    CBP,
    QUIET_LIGHTNING,
    REDO,
    UPDATES,
    Fit,
    Killed,
    books,
    hook_callback,
    killer,
    same,
)

pytestmark = [*QUIET_LIGHTNING, pytest.mark.parametrize("host", ["hf", "lightning"])]

RESET = {"method": "full_reset"}
SWR = {"method": "swr", "every": "1 updates", "params": {"coef": 1e-2}}
HOOKS = [
    {"method": "fire", "at": "0%"},
    SWR,
    RESET | {"at": "14 updates"},
    {"method": "shrink_perturb", "at": "75%"},
]


def small(dropout: float = 0.3) -> nn.Sequential:
    """With dropout, so that torch's generator matters."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 10))


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_update_is_one_optimizer_step_of_several_batches(host: str, tmp_path: Path):
    callback = hook_callback(host, [RESET | {"every": "3 updates"}, SWR])
    Fit(host, tmp_path, small(), callback, max_steps=10, accumulation=2).train()
    assert callback.driver.clock.updates == 10
    assert [r.clock.updates for r in callback.receipts if r.firings == 1] == [3, 6, 9]
    summaries = [(r.clock.updates, r.firings) for r in callback.receipts if r.firings > 1]
    assert summaries == [(6, 6), (10, 4)]  # with the logs


def test_epochs_count_when_the_next_one_begins(host: str, tmp_path: Path):
    callback = hook_callback(host, [RESET | {"every": "1 epochs"}])
    Fit(host, tmp_path, small(), callback, epochs=2).train()
    clocks = [(r.clock.epochs, r.clock.updates) for r in callback.receipts]
    assert clocks == [(1, 8)]  # 64 rows in batches of 8; nothing fires at the end
    assert callback.driver.clock.updates == 16


def test_what_cannot_be_trained_is_refused(host: str, tmp_path: Path):
    net, hooks = small(), [RESET | {"at": "0%"}]
    optimizer = torch.optim.Adam(net[0].parameters())
    with pytest.raises(ConfigError, match=r"model\.3\.weight is trainable and in no"):
        Fit(host, tmp_path, net, hook_callback(host, hooks), optimizer=optimizer).train()
    callback = hook_callback(host, [{"method": "persistent", "at": "50%"}])
    with pytest.raises(ConfigError, match=r"hooks\[0\] \(persistent\) adds a term to the loss"):
        Fit(host, tmp_path, small(), callback).train()
    callback = hook_callback(host, [RESET | {"at": "3 epochs"}])
    with pytest.raises(ConfigError, match="at or past the end"):
        Fit(host, tmp_path, small(), callback, epochs=3).train()


# Those that read: at every update, and once at the first moment after the checkpoint at update 8.
READ = [CBP, REDO | {"every": "1 epochs"}]


def test_interrupted_and_resumed_equals_uninterrupted(host: str, tmp_path: Path):
    hooks = HOOKS + READ

    def fit(name: str, *others: Any) -> tuple[Fit, Any]:
        path = tmp_path / name / "receipts.jsonl"
        callback = hook_callback(host, hooks, receipts=path, seed=2)
        net = small(0.3 if host == "hf" else 0.0)  # Lightning saves no generator
        return Fit(host, path.parent, net, *others, callback, save=True), callback

    whole, one = fit("whole")
    whole.train()
    with pytest.raises(Killed):
        fit("parts", killer(host, 11))[0].train()
    parts, two = fit("parts")
    parts.train(resume=8)
    assert same(whole.state(), parts.state()) and same(books(one.driver), books(two.driver))
    mine, other = (lines(tmp_path / name / "receipts.jsonl") for name in ("whole", "parts"))
    assert mine == other
    assert {r["method"] for r in mine} == {h["method"] for h in hooks}
    assert one.driver.clock.updates == UPDATES
