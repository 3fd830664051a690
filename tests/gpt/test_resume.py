"""Interrupted and resumed equals uninterrupted, bit for bit, in the middle of a phase."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.checkpoint import checkpoint
from rlplast.core.errors import Interrupted
from tests.gpt.runs import run, tiny, write_corpora
from tests.runs import Killed, at_step, final

STEPS = 21  # 20 updates, and the start of the second phase after 10
# Everything that has state: dropout, micro-batches, a penalty's sum; `tiny` has the hooks.
ALL: dict[str, Any] = {
    "model": {
        "layers": 2, "heads": 2, "width": 16, "context": 8, "vocab_size": 256, "dropout": 0.2,
    },
    "micro_batch": 2,
    "penalties": [{"method": "l2_init", "params": {"coef": 0.01}}],
    "checkpoint": {"every": "4 updates", "keep": 2, "best": "low/loss"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def through(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("through")
    run(tiny(corpora, **ALL), folder)
    return folder


def best(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / "best.json").read_text())


def kill() -> None:
    raise Killed


def interrupt() -> None:
    os.kill(os.getpid(), 15)


def test_run_has_hooks_of_every_kind_before_and_after(through: Path) -> None:
    fired = [(r["method"], r["clock"]["updates"]) for r in final(through)["receipts"]]
    scheduled = [at for at in fired if at[1] in (4, 10, 14)]
    assert scheduled == [("shrink_perturb", 4), ("fire", 10), ("shrink_perturb", 14)]
    assert sum(r["firings"] for r in final(through)["receipts"]) == 3 + 9  # from update 12 on


@pytest.mark.parametrize("step", [2, 6, 10, 11, 12, 16, 20])
def test_run_killed_and_resumed_equals(
    step: int, corpora: dict[str, str], through: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(tiny(corpora, **ALL), tmp_path, at_step(step, kill))
    run(tiny(corpora, **ALL), tmp_path)
    assert final(tmp_path) == final(through)
    assert best(tmp_path) == best(through)


def test_run_stopped_at_every_step_equals(
    corpora: dict[str, str], through: Path, tmp_path: Path
) -> None:
    for _ in range(STEPS - 1):
        with pytest.raises(Interrupted):
            run(tiny(corpora, **ALL), tmp_path, lambda loop: interrupt())
    run(tiny(corpora, **ALL), tmp_path)
    assert final(tmp_path) == final(through)
    assert best(tmp_path) == best(through)


def test_checkpoints_around_the_start_of_a_phase_are_two(
    corpora: dict[str, str], through: Path, tmp_path: Path
) -> None:
    for step in (10, 1):  # after update 10, then after the start of the phase, at update 10 too
        with pytest.raises(Interrupted):
            run(tiny(corpora, **ALL), tmp_path, at_step(step, interrupt))
    newest, _ = checkpoint.newest(tmp_path / "checkpoints")
    assert checkpoint.load(newest)[1]["clock"]["phase"] == 1
    run(tiny(corpora, **ALL), tmp_path)
    assert final(tmp_path) == final(through)


def test_extending_a_shorter_run_moves_no_learning_rate(
    corpora: dict[str, str], tmp_path: Path
) -> None:
    plain: dict[str, Any] = {"hooks": [], "evaluate": {"every": None}, "metrics": {"every": None}}
    save = {"every": "5 updates"}
    run(tiny(corpora, checkpoint=save, **plain), tmp_path / "whole")
    run(tiny(corpora, checkpoint=save, total="15 updates", **plain), tmp_path / "part")
    longer = tiny(corpora, checkpoint=save, percentages_of="15 updates", **plain)
    run(longer, tmp_path / "part")
    whole, part = final(tmp_path / "whole"), final(tmp_path / "part")
    assert part["tensors.safetensors"] == whole["tensors.safetensors"]
