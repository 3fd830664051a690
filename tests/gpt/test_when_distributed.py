"""Hooks with a condition in several processes: rank 0 measures, all fire."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpt.runs import run, write_corpora
from tests.gpt.when_ranks import config_of
from tests.runs import final

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes wrote what tests.gpt.when_ranks does."""
    root = tmp_path_factory.mktemp("root")
    corpora = write_corpora(root / "corpora")
    (root / "corpora.json").write_text(json.dumps(corpora))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.gpt.when_ranks", str(root)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run(config_of(corpora), root / "alone")
    return root


def fired(folder: Path) -> list[tuple[str, int]]:
    return [(r["method"], r["clock"]["updates"]) for r in final(folder)["receipts"]]


def test_two_processes_fire_when_one_does(root: Path) -> None:
    assert fired(root / "two") == fired(root / "alone")
    assert {method for method, _ in fired(root / "two")} == {"shrink_perturb", "fire", "full_reset"}
    norms, alone = (
        [r["metric/weight_norm/gpt"] for r in final(path)["metrics"] if "metric/srank/gpt" in r]
        for path in (root / "two", root / "alone")
    )
    assert norms == pytest.approx(alone, rel=1e-4)


def test_signal_to_one_process_and_resume_fires_the_same(root: Path) -> None:
    assert final(root / "interrupted") == final(root / "two")
