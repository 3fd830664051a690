"""Cells that several processes train together: the runs that torchrun makes, whoever dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.study.api import read_study_config, study_cells
from tests.cli.commands import command
from tests.runs import TINY, final
from tests.study.commands import until

GPT: dict[str, Any] = {
    "kind": "gpt",
    "threads": 1,
    "device": "cpu",
    "model": {"layers": 1, "heads": 2, "width": 16, "context": 16, "vocab_size": 256},
    "corpora": {"source": "embedded/stdlib"},
    "phases": [{"updates": 200, "mixture": {"source": 1}}],
    "batch_size": 8,
    "log": {"every": "10 updates", "to": []},
    "evaluate": {"every": "20 updates", "batches": 1},
    "metrics": {"every": None},
    "checkpoint": {"every": "10 updates"},
}
FIRE = {"hooks": [{"method": "fire", "at": "40 updates", "scope": "gpt"}]}


def study_of(folder: Path, base: dict[str, Any], **arms: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"base": base, "arms": arms, "processes": 2, "seeds": 1}))
    return path


SLOW = """
import time
from rlplast.gpt.trainer import GPTTrainer

step = GPTTrainer.step
GPTTrainer.step = lambda self: (time.sleep(0.03), step(self))
"""


def rlplast(folder: Path, *words: str, launch: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *launch, "-m", "rlplast", *words], cwd=folder)


def ranks(study: Path) -> list[int]:
    """Process ids of the other ranks of a study's cells."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"rlplast.study.cell" in words and any(
            word == os.fsencode(study.resolve()) for word in words
        ):
            found.append(int(path.name))
    return found


@pytest.mark.slow
def test_a_cell_is_the_run_of_torchrun_whoever_of_its_processes_is_killed(tmp_path: Path) -> None:
    """First another rank, which is started again, then the study, which goes on when told to."""
    (tmp_path / "fire.yaml").write_text(yaml.safe_dump(GPT | FIRE | {"seed": 1}))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    run = rlplast(tmp_path, "train", "fire.yaml", "--out", "fire", launch=torchrun)
    assert run.wait(300) == 0
    (tmp_path / "slow.py").write_text(SLOW)  # so that kills meet it
    study_of(tmp_path, GPT, fire=FIRE)
    words, out = ("--import", "slow", "study", "study.yaml", "--out", "study"), tmp_path / "study"

    def saved() -> int:
        return max(
            (int(p.name.split("-")[1]) for p in out.glob("cells/*/*/checkpoints/step-*")), default=0
        )

    run = rlplast(tmp_path, *words)
    until(lambda: ranks(out) and saved(), 120)
    os.kill(ranks(out)[0], signal.SIGKILL)
    before = saved()
    until(lambda: ranks(out) and saved() > before + 10, 120)  # more than was being written
    run.kill()
    assert run.wait() == -signal.SIGKILL
    until(lambda: not ranks(out), 120)
    assert "attempt 2" in next((out / "logs").glob("*fire*.log")).read_text()
    assert rlplast(tmp_path, *words).wait(300) == 0
    assert final(next(out.glob("cells/*/fire-*"))) == final(tmp_path / "fire")
    assert not ranks(out)


CBP = {"hooks": [{"method": "cbp", "every": "1 updates"}]}


@pytest.mark.parametrize(
    ("base", "arm", "says"),
    [
        (TINY, {}, "arm 'a': kind = 'dqn' with 2 processes: it trains in one, so without"),
        (GPT | {"batch_size": 7}, {}, "batch_size = 7 with 2 processes: allowed is a multiple"),
        (GPT | {"micro_batch": 8}, {}, "micro_batch = 8: allowed is a divisor of 4"),
        (GPT | {"accelerate": "graph"}, {}, "accelerate = 'graph' with 2 processes: allowed are"),
        (GPT, CBP, "hooks read activations at every update, of which each of 2 processes sees"),
    ],
)
def test_what_several_processes_cannot_train_is_refused_by_the_plan(
    base: dict[str, Any], arm: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = study_of(tmp_path, base, a={"hooks": []} | arm)
    outcome = command("study", path, "--plan")
    assert outcome.code == 2 and says in outcome.err


def test_cells_of_another_number_of_processes_are_other_cells(tmp_path: Path) -> None:
    path = study_of(tmp_path, GPT, none={"hooks": []}, fire=FIRE)
    keys = []
    for number in (1, 2, 3):
        text = path.read_text().replace("processes: 2", f"processes: {number}")
        (tmp_path / "other.yaml").write_text(text.replace("batch_size: 8", "batch_size: 12"))
        study = read_study_config(str(tmp_path / "other.yaml"))
        keys += [cell.key for cell in study_cells(study)]
    assert len(set(keys)) == len(keys) == 9
