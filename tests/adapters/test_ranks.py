"""Hooks in the Trainer with two processes, as ``torchrun`` starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
import os
import sys
from pathlib import Path

import torch

from rlplast.adapters.hf_trainer import HookCallback
from rlplast.core.errors import ConfigError
from rlplast.training import distributed
from tests.adapters.hosts import CBP, REDO, WithLoss, hf_trainer, net

folder, rank, state = Path(sys.argv[1]), int(os.environ["RANK"]), {"refused": []}
scheduled = [REDO | {"every": "5 updates"}]


def train(module, hooks, **options):
    saving = {"save_strategy": "steps", "save_steps": 8} if "receipts" in options else {}
    callback = HookCallback(hooks, networks={"model": "net"}, **options)
    callback.driver.seed = rank if len(sys.argv) > 2 else 0  # a rank that goes astray
    hf_trainer(folder, WithLoss(module), [callback], **saving).train()
    weights = [float(p.double().sum()) for p in module.parameters()]
    return weights, len(callback.receipts), sum(r.entries_touched for r in callback.receipts)


torch.manual_seed(0)
layers = [torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10)]
hooks = [{"method": "full_reset", "every": "5 updates"}, {"method": "swr", "every": "1 updates"}]
state["own"] = train(torch.nn.Sequential(*layers), hooks, receipts=folder / "receipts.jsonl")
for hooks in ([CBP], scheduled):
    try:
        train(net(), hooks)
    except ConfigError as error:
        state["refused"].append(str(error))
probe = lambda size, g: torch.rand(size, 64, generator=g)
state["reading"] = train(net(), scheduled, probe=probe)
(folder / f"rank{rank}.json").write_text(json.dumps(state))
distributed.leave()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    root = Path(__file__).parents[2]
    return subprocess.run(
        [*launch, str(folder / "program.py"), str(folder), *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_ranks_fire_and_read_alike_and_one_writes(tmp_path: Path):
    done = torchrun(tmp_path)
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2))
    assert one == other
    rows = (tmp_path / "receipts.jsonl").read_text().splitlines()
    assert len(rows) == one["own"][1] == 7  # 3 resets, 4 summaries
    assert (tmp_path / "checkpoint-8" / "rlplast" / "COMPLETE").exists()
    assert one["reading"][2] > 0
    inside, scheduled = one["refused"]  # rows of one rank decide nothing
    assert "(cbp) on network 'model' reads activations of every update: each of 2" in inside
    assert "(redo) on network 'model'" in scheduled and "pass probe=" in scheduled


@pytest.mark.slow
def test_ranks_that_differ_after_a_firing_stop(tmp_path: Path):
    done = torchrun(tmp_path, "astray")
    assert done.returncode != 0
    assert "tensors differ between the 2 processes" in done.stderr
