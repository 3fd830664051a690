"""Hooks in the Trainer with two processes, as ``torchrun`` starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path

import torch

from rlplast.adapters.hf_trainer import HookCallback
from rlplast.training import distributed
from tests.adapters.hosts import WithLoss, hf_trainer

torch.manual_seed(0)
layers = [torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10)]
folder, rank = Path(sys.argv[1]), torch.distributed
hooks = [
    {"method": "full_reset", "every": "5 updates"},
    {"method": "swr", "every": "1 updates"},
]
callback = HookCallback(hooks, networks={"model": "net"}, receipts=folder / "receipts.jsonl")
model = WithLoss(torch.nn.Sequential(*layers))
trainer = hf_trainer(folder, model, [callback], save_strategy="steps", save_steps=8)
if len(sys.argv) > 2:  # a rank that goes astray
    callback.driver.seed = int(__import__("os").environ["RANK"])
trainer.train()
number = torch.distributed.get_rank()
state = {"weight": model.net[3].weight.double().sum().item(), "receipts": len(callback.receipts)}
(folder / f"rank{number}.json").write_text(__import__("json").dumps(state))
"""


READING = """
import json
import os
import sys
from pathlib import Path

import torch

from rlplast.adapters.hf_trainer import HookCallback
from rlplast.core.errors import ConfigError
from rlplast.training import distributed
from tests.adapters import toys
from tests.adapters.hosts import WithLoss, hf_trainer
from tests.adapters.readers import net

toys.register()
folder, refused = Path(sys.argv[1]), []
scheduled = [toys.row("toy_silent", every="5 updates")]


def train(hooks, **options):
    callback, module = HookCallback(hooks, networks={"model": "net"}, **options), net()
    hf_trainer(folder, WithLoss(module), [callback]).train()
    return callback, module


for hooks in ([toys.row("toy_least")], scheduled):
    try:
        train(hooks)
    except ConfigError as error:
        refused.append(str(error))
callback, module = train(scheduled, probe=lambda size, g: torch.rand(size, 64, generator=g))
state = {
    "refused": refused,
    "weight": module[2].weight.double().sum().item(),
    "touched": sum(r.entries_touched for r in callback.receipts),
}
(folder / f"reading{os.environ['RANK']}.json").write_text(json.dumps(state))
"""


def torchrun(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(f"{program}\ndistributed.leave()\n")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    root = Path(__file__).parents[2]
    return subprocess.run(
        [*launch, str(folder / "program.py"), str(folder), *arguments],
        cwd=root,
        env={**__import__("os").environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks have run both programs."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(folder, PROGRAM + READING)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_ranks_fire_alike_and_one_writes(done: Path):
    states = [json.loads((done / f"rank{i}.json").read_text()) for i in range(2)]
    assert states[0] == states[1]
    lines = (done / "receipts.jsonl").read_text().splitlines()
    assert len(lines) == states[0]["receipts"] == 7  # 3 resets, 4 summaries
    assert (done / "checkpoint-8" / "rlplast" / "COMPLETE").exists()


@pytest.mark.slow
def test_ranks_that_differ_after_a_firing_stop(tmp_path: Path):
    done = torchrun(tmp_path, PROGRAM, "astray")
    assert done.returncode != 0
    assert "tensors differ between the 2 processes" in done.stderr


@pytest.mark.slow
def test_rows_of_one_rank_decide_nothing_and_a_probe_is_read_by_all(done: Path):
    one, other = (json.loads((done / f"reading{i}.json").read_text()) for i in range(2))
    assert one == other and one["touched"] > 0
    inside, scheduled = one["refused"]
    assert "(toy_least) on network 'model' reads activations of every update: each of 2" in inside
    assert "(toy_silent) on network 'model'" in scheduled and "pass probe=" in scheduled
