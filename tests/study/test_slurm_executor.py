"""Jobs through submitit, on a Slurm that a script plays."""

import os
import pickle
import signal
from unittest import mock

import pytest

submitit = pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from rlplast.core.errors import ConfigError  # noqa: E402
from rlplast.study import slurm_executor  # noqa: E402
from tests.study import fake_slurm  # noqa: E402
from tests.study.commands import (  # noqa: E402
    alive,
    begin,
    job,
    outcomes,
    saved,
    saver,
    starts,
    until,
    warn,
)


@pytest.fixture(autouse=True)
def nothing_is_unpickled(monkeypatch):
    """As a study's process has it; the jobs' own ones open what it sent them."""
    for module, name in ((pickle, "load"), (pickle, "loads"), (submitit.core.utils, "pickle_load")):
        monkeypatch.setattr(module, name, mock.Mock(side_effect=AssertionError))


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


def test_job_that_ended_before_slurm_was_asked_again_may_still_run(
    make, slurm, monkeypatch, tmp_path
):
    monkeypatch.setattr(slurm_executor, "_SOON", 1000.0)
    executor = make("slurm", slurm={"time": 5})
    executor.submit(job(tmp_path, "cell", ""))  # asks Slurm, which does not know it yet
    until(lambda: fake_slurm.state(slurm, 1)["State"] == "COMPLETED")
    fake_slurm.set_state(slurm, 1, State="COMPLETING")  # it is listed, and would be found again
    assert executor.wait(0) == []
    fake_slurm.set_state(slurm, 1, State="COMPLETED")
    monkeypatch.setattr(slurm_executor, "_SOON", 0.0)
    assert outcomes(executor, 1)["cell"].exit == 0


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
        ("CANCELLED by 7", 143, "its state is CANCELLED"),
        ("OUT_OF_MEMORY", 137, "Slurm's state is OUT_OF_MEMORY"),
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


@pytest.mark.parametrize(
    ("accounts", "ended", "code", "says"),
    [
        (False, "CANCELLED by 7", 137, "Slurm knows it no more"),
        (True, "CANCELLED by 7", 143, "its state is CANCELLED"),
        (True, "RUNNING", 137, "Slurm knows it no more"),  # accounts that never heard of the end
    ],
)
def test_job_that_has_left_the_queue_has_ended(
    accounts, ended, code, says, make, slurm, tmp_path, monkeypatch
):
    monkeypatch.setattr(slurm_executor, "_SLOW", 0)
    if not accounts:
        (slurm / "no accounts").touch()
    (slurm / "full").touch()
    executor = make("slurm", slurm={"time": 5})
    executor.submit(job(tmp_path, "cell", ""))
    assert executor.wait(0.5) == []  # it waits in the queue
    fake_slurm.set_state(slurm, 1, State=ended, forgotten=True)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == code
    assert says in outcome.reason
    assert not (slurm / "2.json").exists()


def test_job_that_is_not_listed_at_once_is_waited_for(make, slurm, tmp_path):
    (slurm / "full").touch()
    executor = make("slurm", slurm={"time": 5})
    executor.submit(job(tmp_path, "cell", ""))
    fake_slurm.set_state(slurm, 1, forgotten=True)
    assert executor.wait(0.5) == []
    fake_slurm.set_state(slurm, 1, forgotten=False)
    assert executor.wait(0.5) == []


def test_job_whose_id_is_another_ones_now_has_ended(make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_SLOW", 0)
    (slurm / "full").touch()
    executor = make("slurm", slurm={"time": 5})
    executor.submit(job(tmp_path, "cell", ""))
    # Slurm's controller was killed before it had saved that there is such a job.
    fake_slurm.set_state(slurm, 1, script=str(tmp_path / "slurm" / "cell-2" / "script.sh"))
    assert outcomes(executor, 1)["cell"].exit == 137


@pytest.mark.parametrize("accounts", [True, False])
def test_restarted_study_finds_its_jobs_in_the_queue(accounts, make, slurm, tmp_path):
    if not accounts:
        (slurm / "no accounts").touch()
    begin(make("slurm", slurm={"time": 5}), tmp_path, "cell")
    again = make("slurm", slurm={"time": 5})  # as after kill -9: nobody asked the first one to stop
    begin(again, tmp_path, "cell")
    (tmp_path / "go").touch()
    assert outcomes(again, 1)["cell"].exit == 0
    assert len(starts(tmp_path, "cell")) == 1
    assert not (slurm / "2.json").exists()
    begin(again, tmp_path, "cell")  # one that has ended is not found
    assert (slurm / "2.json").exists()


def test_job_whose_study_was_killed_as_it_submitted_it_is_replaced(make, slurm, tmp_path):
    (slurm / "full").touch()
    make("slurm", slurm={"time": 5}).submit(job(tmp_path, "cell", ""))
    (tmp_path / "slurm" / "cell" / "1_submitted.pkl").unlink()  # written after sbatch returns
    (slurm / "full").unlink()
    again = make("slurm", slurm={"time": 5})
    again.submit(job(tmp_path, "cell", ""))
    assert outcomes(again, 1)["cell"].exit == 0
    assert fake_slurm.state(slurm, 1)["State"].startswith("CANCELLED")


@pytest.mark.parametrize("restarted", [False, True])
def test_job_that_slurm_queues_again_gets_no_twin(restarted, make, slurm, tmp_path):
    executor = make("slurm", slurm={"time": 5})
    pid = begin(executor, tmp_path, "cell")
    (slurm / "full").touch()
    fake_slurm.set_state(slurm, 1, State="PENDING")  # then Slurm ends what ran
    os.kill(pid, signal.SIGTERM)
    until((tmp_path / "slurm" / "cell" / "1_0_result.json").exists)
    if restarted:
        executor = make("slurm", slurm={"time": 5})
        executor.submit(saver(tmp_path, "cell"))
    assert executor.wait(0.5) == []
    fake_slurm.start(slurm, "1")
    until(lambda: len(starts(tmp_path, "cell")) == 2)
    assert executor.wait(0.5) == []
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert not (slurm / "2.json").exists()


def test_slurm_that_does_not_answer_is_waited_for_and_said_once(make, slurm, tmp_path, capfd):
    executor = make("slurm", slurm={"time": 5})
    begin(executor, tmp_path, "running")
    (slurm / "down").touch()
    assert executor.wait(0.5) == []
    executor.submit(job(tmp_path, "new", ""))
    assert executor.wait(0.5) == []
    news = [executor.news() for _ in range(3)]
    assert news[0].startswith("Slurm does not answer (squeue: slurm_load_jobs error: Connection")
    assert news[1:] == ["", ""]
    (slurm / "down").unlink()
    (tmp_path / "go").touch()
    assert {name: out.exit for name, out in outcomes(executor, 2).items()} == {
        "running": 0,
        "new": 0,
    }
    assert [executor.news() for _ in range(2)] == ["Slurm answers again", ""]
    assert capfd.readouterr() == ("", "")


def test_job_is_stopped_before_slurm_has_answered(make, slurm, tmp_path):
    executor = make("slurm", slurm={"time": 5})
    (slurm / "down").touch()
    executor.submit(job(tmp_path, "cell", ""))
    (outcome,) = executor.stop()
    assert (outcome.exit, outcome.reason) == (130, "stopped before it began")


def test_slurm_that_does_not_answer_at_the_start_is_refused(make, slurm):
    (slurm / "down").touch()
    with pytest.raises(ConfigError, match="squeue: slurm_load_jobs error: Connection refused"):
        make("slurm", slurm={"time": 5})


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
    os.killpg(fake_slurm.state(slurm, 1)["pid"], signal.SIGKILL)
    (tmp_path / "slurm" / "cell" / "1_0_result.json").write_text('{"exit": ')
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "1_0_result.json is damaged" in outcome.reason
