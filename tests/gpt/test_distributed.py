import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.gpt.trainer import GPTTrainer
from rlplast.training import checkpoint
from tests.gpt.ranks import conditional, config_of
from tests.gpt.runs import rows, run, write_corpora
from tests.runs import final

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.slow  # torchrun


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes wrote what tests.gpt.ranks does."""
    root = tmp_path_factory.mktemp("two")
    (root / "corpora.json").write_text(json.dumps(write_corpora(root / "corpora")))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.gpt.ranks", str(root)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.fixture(scope="module")
def alone(two: Path) -> tuple[Path, GPTTrainer]:
    """The same run in one process."""
    corpora = json.loads((two / "corpora.json").read_text())
    return two / "alone", run(config_of(corpora), two / "alone")


def fired(folder: Path) -> list[tuple[str, int]]:
    return [(r["method"], r["clock"]["updates"]) for r in final(folder)["receipts"]]


def results_of(two: Path, rank: int) -> dict[str, Any]:
    return json.loads((two / f"rank{rank}.json").read_text())


def test_two_processes_follow_one(two: Path, alone: tuple[Path, GPTTrainer]) -> None:
    for key in ("train/loss", "eval/loss", "eval/high/loss"):
        mine, theirs = rows(alone[0], key), rows(two / "plain", key)
        assert [at for at, _ in mine] == [at for at, _ in theirs]
        assert [v for _, v in theirs] == pytest.approx([v for _, v in mine], rel=0, abs=1e-5)
    assert len(rows(two / "plain", "train/loss")) == 20
    assert fired(two / "plain") == fired(alone[0])
    assert {"fire", "shrink_perturb"} <= {method for method, _ in fired(two / "plain")}
    mine, theirs = (
        checkpoint.load(checkpoint.newest(path / "checkpoints")[0])[0]
        for path in (alone[0], two / "plain")
    )
    for name, value in mine.items():
        if name.startswith("gpt."):
            torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-4)


def test_ranks_hold_identical_weights_and_know_all_scores_and_drop_out_other_entries(
    two: Path,
) -> None:
    first, second = (results_of(two, rank) for rank in (0, 1))
    assert first["digests"] == second["digests"]
    assert len(set(first["digests"])) == len(first["digests"]) == 21  # and the start of a phase
    assert first["scores"] == second["scores"]
    assert first["dropout"] != second["dropout"]


def test_signal_to_one_process_stops_all_and_resume_equals_with_dropout_and_conditions(
    two: Path,
) -> None:
    for rank in (0, 1):
        assert "stopped by SIGTERM; checkpoint saved" in results_of(two, rank)["interrupted"]
    assert final(two / "interrupted") == final(two / "dropout")


def test_ranks_out_of_step_stop_at_the_next_hook_naming_the_tensor(two: Path) -> None:
    for rank in (0, 1):
        assert results_of(two, rank)["out_of_step"].startswith("gpt.wte.weight: 1 of ")
    assert rows(two / "out_of_step", "train/loss")[-1][0] == 10  # and then the phase starts
    assert "fire" not in [method for method, _ in fired(two / "out_of_step")]


def test_conditions_that_rank_0_measures_fire_in_all(two: Path) -> None:
    run(conditional(json.loads((two / "corpora.json").read_text())), two / "conditional alone")
    assert fired(two / "conditional") == fired(two / "conditional alone")
    methods = {method for method, _ in fired(two / "conditional")}
    assert methods == {"shrink_perturb", "fire", "full_reset"}
    norms, alone = (
        [r["metric/weight_norm/gpt"] for r in final(path)["metrics"] if "metric/srank/gpt" in r]
        for path in (two / "conditional", two / "conditional alone")
    )
    assert norms == pytest.approx(alone, rel=1e-4)
