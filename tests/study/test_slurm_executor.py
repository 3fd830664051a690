"""Jobs through submitit, on a Slurm that a script plays."""

import os
import pickle
import signal
from pathlib import Path
from unittest import mock

import pytest

submitit = pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from rlplast.study import slurm_executor  # noqa: E402
from tests.study import fake_slurm  # noqa: E402
from tests.study.commands import alive, begin, job, outcomes, saved, starts, until  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_unpickled(monkeypatch):
    """As a study's process has it; the jobs' own ones open what it sent them."""
    for module, name in ((pickle, "load"), (pickle, "loads"), (submitit.core.utils, "pickle_load")):
        monkeypatch.setattr(module, name, mock.Mock(side_effect=AssertionError))


def warn(pid: int) -> None:
    """Signal that the time limit nears: all processes of a job get it."""
    watcher = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    for process in (pid, watcher):
        os.kill(process, signal.SIGUSR2)


def test_slurm_gets_the_parameters(make, slurm, tmp_path):
    given = {"time": 240, "partition": "short", "gpus_per_node": 1, "mem": "8G"}
    executor = make("slurm", slurm=given)
    executor.submit(job(tmp_path, "cell", "", threads=2))
    assert outcomes(executor, 1)["cell"].exit == 0
    assert {
        f"#SBATCH {expected}"
        for expected in (
            "--partition=short",
            "--time=240",
            "--gpus-per-node=1",
            "--cpus-per-task=2",
            "--mem=8G",
            "--signal=USR2@150",
            "--job-name=cell",
        )
    } <= set(fake_slurm.state(slurm, 1)["text"].splitlines())


def test_job_that_nears_its_time_limit_saves_and_is_queued_again(make, slurm, tmp_path):
    executor = make("slurm", slurm={"time": 5})
    warn(begin(executor, tmp_path, "cell"))
    until(lambda: len(starts(tmp_path, "cell")) == 2)
    assert saved(tmp_path, "cell")
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert "=== attempt 2" in (tmp_path / "cell.log").read_text()
    assert not (slurm / "2.json").exists()  # Slurm's own queue, not a new job


def test_job_whose_time_limit_comes_too_often_says_so(make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_AGAIN", 0)
    executor = make("slurm", slurm={"time": 5})
    warn(begin(executor, tmp_path, "cell"))
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "its time limit came too often: raise slurm.time" in outcome.reason
    assert len(starts(tmp_path, "cell")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "code", "says"),
    [
        ("PREEMPTED", 0, ""),
        ("NODE_FAIL", 127, "(NODE_FAIL), then: Slurm did not take it: "),
        ("CANCELLED by 7", 143, "its state is CANCELLED by 7"),
        ("FAILED", 137, "Slurm's state is FAILED"),
    ],
)
def test_job_that_slurm_ends(state, code, says, make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_SLOW", 0)
    executor = make("slurm", slurm={"time": 5})
    pid = begin(executor, tmp_path, "cell")
    if code == 127:
        fake_slurm.refuse(slurm)
    fake_slurm.set_state(slurm, 1, State=state)
    os.killpg(fake_slurm.state(slurm, 1)["pid"], signal.SIGKILL)
    until(lambda: not alive(pid))
    (tmp_path / "go").touch()
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == code
    assert says in outcome.reason
    assert (slurm / "2.json").exists() == (code == 0)


@pytest.mark.slow
def test_job_that_slurm_ends_again_and_again_fails(make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_AGAIN", 2)
    executor = make("slurm", slurm={"time": 5})
    executor.submit(job(tmp_path, "cell", "os.kill(os.getpid(), 15)"))
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 143, outcome.reason
    assert len(list(slurm.glob("*.json"))) == 3


@pytest.mark.slow
def test_restarted_study_finds_its_jobs_in_the_queue(make, slurm, tmp_path):
    begin(make("slurm", slurm={"time": 5}), tmp_path, "cell")
    again = make("slurm", slurm={"time": 5})  # as after kill -9: nobody asked the first one to stop
    begin(again, tmp_path, "cell")
    (tmp_path / "go").touch()
    assert outcomes(again, 1)["cell"].exit == 0
    assert len(starts(tmp_path, "cell")) == 1
    assert not (slurm / "2.json").exists()
    begin(again, tmp_path, "cell")  # one that has ended is not found, even if Slurm is slow to see
    assert (slurm / "2.json").exists()


def test_job_that_slurm_refuses_comes_back_with_its_words(make, slurm, tmp_path):
    fake_slurm.refuse(slurm)
    executor = make("slurm", slurm={"time": 5, "partition": "nowhere"})
    executor.submit(job(tmp_path, "cell", ""))
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 127
    assert "no such partition" in outcome.reason


def test_job_whose_result_is_damaged_has_failed(make, slurm, tmp_path):
    executor = make("slurm", slurm={"time": 5})
    begin(executor, tmp_path, "cell")
    (tmp_path / "slurm" / "1_0_result.json").write_text('{"exit": ')
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "Slurm's state is RUNNING" in outcome.reason
    os.killpg(fake_slurm.state(slurm, 1)["pid"], signal.SIGKILL)  # it runs on
