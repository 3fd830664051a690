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
from rlplast.training import distributed
from tests.adapters.hosts import CBP, REDO, WithLoss, hf_trainer, net

folder, rank, state = Path(sys.argv[1]), int(os.environ["RANK"]), {"refused": []}
scheduled = [REDO | {"every": "5 updates"}]


def train(module, hooks, seed=0, **options):
    saving = {"save_strategy": "steps", "save_steps": 8} if "receipts" in options else {}
    callback = HookCallback(hooks, networks={"model": "net"}, **options)
    callback.driver.seed = seed
    hf_trainer(folder, WithLoss(module), [callback], **saving).train()
    weights = [float(p.double().sum()) for p in module.parameters()]
    return weights, len(callback.receipts), sum(r.entries_touched for r in callback.receipts)


torch.manual_seed(0)
layers = [torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10)]
hooks = [{"method": "full_reset", "every": "5 updates"}, {"method": "swr", "every": "1 updates"}]
state["own"] = train(torch.nn.Sequential(*layers), hooks, receipts=folder / "receipts.jsonl")
for refused, seed in (([CBP], 0), (scheduled, 0), (hooks, rank)):  # the last goes astray
    try:
        train(net(), refused, seed)
    except Exception as error:
        state["refused"].append(str(error))
probe = lambda size, g: torch.rand(size, 64, generator=g)
state["reading"] = train(net(), scheduled, probe=probe)
(folder / f"rank{rank}.json").write_text(json.dumps(state))
distributed.leave()
"""


@pytest.mark.slow
def test_ranks_fire_and_read_alike_and_one_writes(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*launch, str(tmp_path / "program.py"), str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2))
    assert one == other
    rows = (tmp_path / "receipts.jsonl").read_text().splitlines()
    assert len(rows) == one["own"][1] == 7  # 3 resets, 4 summaries
    assert (tmp_path / "checkpoint-8" / "rlplast" / "COMPLETE").exists()
    assert one["reading"][2] > 0
    inside, scheduled, astray = one["refused"]  # rows of one rank decide nothing
    assert "(cbp) on network 'model' reads activations of every update: each of 2" in inside
    assert "(redo) on network 'model'" in scheduled and "pass probe=" in scheduled
    assert "tensors differ between the 2 processes" in astray
