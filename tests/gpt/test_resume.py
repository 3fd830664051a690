"""Interrupted and resumed equals uninterrupted, bit for bit, wherever in a phase."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import Interrupted
from rlplast.training import checkpoint
from tests.gpt.runs import MODEL, run, tiny
from tests.runs import Killed, at_step, final, kill, stop

# Everything that has state: dropout, micro-batches, a penalty's sum; `tiny` has the hooks.
ALL: dict[str, Any] = {
    "model": MODEL | {"dropout": 0.2},
    "micro_batch": 2,
    "penalties": [
        {"method": "l2_init", "params": {"coef": 0.01}},
        {"method": "spectral", "from": "phase 1", "until": "16 updates"},
    ],
    "checkpoint": {"every": "4 updates", "keep": 2, "best": "low/loss"},
    "metrics": {"every": "50%", "names": ["weight_norm", "srank"]},
}


@pytest.fixture(scope="module")
def through(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("through")
    run(tiny(corpora, **ALL), folder)
    return folder


def left(folder: Path) -> dict[str, Any]:
    """What a run left, and which of its checkpoints is the best."""
    best = json.loads((folder / "checkpoints" / "best.json").read_text())
    return final(folder) | {"best": best}


def test_run_killed_or_stopped_and_resumed_equals(
    corpora: dict[str, str], through: Path, tmp_path: Path
) -> None:
    phases = []
    # At update 7, of which 5 are saved; on both sides of the switch at 10; at 17.
    for steps, end in ((7, kill), (5, stop), (1, stop), (7, kill)):
        with pytest.raises((Killed, Interrupted)):
            run(tiny(corpora, **ALL), tmp_path, at_step(steps, end))
        newest, _ = checkpoint.newest(tmp_path / "checkpoints")
        phases.append(checkpoint.load(newest)[1]["clock"]["phase"])
    assert phases == [0, 0, 1, 1]
    run(tiny(corpora, **ALL), tmp_path)
    assert left(tmp_path) == left(through)
    fired = [(r["method"], r["clock"]["updates"]) for r in final(through)["receipts"]]
    scheduled = [at for at in fired if at[1] in (4, 10, 14)]
    assert scheduled == [("shrink_perturb", 4), ("fire", 10), ("shrink_perturb", 14)]
    assert sum(r["firings"] for r in final(through)["receipts"]) == 3 + 9  # from update 12 on


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
