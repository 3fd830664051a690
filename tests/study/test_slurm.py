"""Workers on a real Slurm of one node, without accounting, that this file starts and stops.

They run where Slurm is installed.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from tests.cli.studies import ARMS, TINY, results
from tests.study import real_slurm
from tests.study.commands import until
from tests.study.inline import run_study, write_study
from tests.study.real_slurm import Cluster

pytestmark = pytest.mark.slow
LONG: dict[str, Any] = TINY | {"total": "1200 env_steps", "replay_ratio": 1}
EXECUTOR = {"kind": "slurm", "slurm": {"time": 5, "signal_delay_s": 30}}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with real_slurm.cluster(monkeypatch.setenv) as cluster:
        yield cluster


def start(folder: Path, **more: Any) -> subprocess.Popen[str]:
    config = write_study(folder, LONG, ARMS, executor=EXECUTOR | more, jobs=2)
    words = [sys.executable, "-m", "rlplast", "study", config, "--out", folder / "study"]
    return subprocess.Popen(
        list(map(str, words)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def held(study: Path) -> list[str]:
    """Return the claims that no worker has ended, those of workers that were killed too."""
    return [p.name for p in (study / "claims").glob("*.*") if '"end"' not in p.read_text()]


def training(study: Path) -> bool:
    lines = [path.read_text().count("\n") for path in study.glob("cells/**/metrics.jsonl")]
    return bool(held(study)) and max(lines, default=0) > 2


def running(slurm: Cluster) -> list[str]:
    return slurm.say("squeue", "--noheader", "--states=RUNNING", "--format=%i").split()


def cancelled(slurm: Cluster) -> str:
    """Cancel all jobs; return those that are left."""
    slurm.say("scancel", *slurm.say("squeue", "--noheader", "--format=%A").split())
    return slurm.say("squeue", "--noheader")


def test_jobs_that_are_requeued_warned_and_cancelled_end_as_a_local_study(
    slurm: Cluster, tmp_path: Path
) -> None:
    study = tmp_path / "study"
    process = start(tmp_path, cells=2)
    until(lambda: training(study) and running(slurm), 180)
    slurm.say("scontrol", "requeue", running(slurm)[0])  # as an administrator does
    until(lambda: training(study) and running(slurm), 180)
    slurm.say("scancel", "--signal=USR2", running(slurm)[0])  # as near its time limit
    until(lambda: training(study) and running(slurm), 180)
    process.send_signal(signal.SIGINT)  # its workers go on
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "workers go on" in output
    until(lambda: not cancelled(slurm), 120)  # one that is being queued again takes two
    process = start(tmp_path, cells=2)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert run_study(write_study(tmp_path, LONG, ARMS), tmp_path / "here")[0].code == 0
    assert results(study) == results(tmp_path / "here")
    done = [json.loads(p.read_text()).get("end") for p in (study / "claims").iterdir()]
    assert done.count("done") == len(json.loads((study / "study.json").read_text())["cells"])
    until(lambda: not slurm.say("squeue", "--noheader"), 120)  # nobody stays without a cell
