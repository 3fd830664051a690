"""The examples of the documents run, and say what they promise."""

import runpy
from pathlib import Path

import pytest
import torch

from tests.adapters.hosts import QUIET_LIGHTNING
from tests.marks import slow

pytestmark = [*QUIET_LIGHTNING, pytest.mark.filterwarnings("ignore:Creating .*WeightUpdater")]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RESUMED = "equals uninterrupted: True"


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        slow("sb3_hooks", ["fire        env_step 1000", "head_reset", "lines in"]),
        slow("sb3_ppo_stages", ["head_reset of critic in phase 2", "stage 2", "lines in"]),
        slow("hf_trainer_hooks", ["full_reset     update 18", RESUMED]),
        slow("torchrl_dqn", ["redo", "full_reset 25"]),
        ("lightning_hooks", ["full_reset  update 10", RESUMED]),
    ],
)
def test_example_runs(name: str, promised: list[str], capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert all(words in output for words in promised), output
