"""Jobs on a real Slurm, without accounting, that this file starts and stops.

They run where Slurm is installed. RLPLAST_APT_SLURM=1 installs Debian's packages, as root.
"""

import json
import subprocess
import sys

import pytest

pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from rlplast.study import slurm_executor
from rlplast.study.executors import make_executor
from tests.cli.studies import TINY
from tests.runs import status
from tests.study import real_slurm
from tests.study.commands import (
    begin,
    job,
    outcomes,
    run_program,
    saved,
    saver,
    starts,
    until,
)
from tests.study.inline import arm_folders, write_study

pytestmark = pytest.mark.slow
OPTIONS = {"time": 5, "signal_delay_s": 30}


@pytest.fixture(scope="module")
def slurm():
    with pytest.MonkeyPatch.context() as patch, real_slurm.cluster(patch.setenv) as cluster:
        yield cluster


@pytest.fixture
def make(slurm, monkeypatch):
    """Make executors that look often; what their jobs leave in the queue is ended."""
    for name, seconds in (("_FRESH", 0.5), ("_SOON", 0.5), ("_SLOW", 2)):
        monkeypatch.setattr(slurm_executor, name, seconds)
    made = []

    def make(cells=1):
        options = {"slurm": OPTIONS, "cells": cells}
        made.append(make_executor("slurm", 3, 1, options, run_program))
        made[-1]._backend.pause = 0.2
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def new(slurm, before: list[str]) -> list[str]:
    return [number for number in slurm.jobs() if number not in before]


def test_three_cells_run_and_say_how_they_ended(make, tmp_path, capfd):
    executor = make()
    executor.submit(job(tmp_path, "done", ""))
    executor.submit(job(tmp_path, "failed", "raise SystemExit(3)"))
    executor.submit(job(tmp_path, "killed", "os.kill(os.getpid(), 9)"))
    found = {name: (out.exit, out.reason) for name, out in outcomes(executor, 3).items()}
    assert found == {"done": (0, ""), "failed": (3, ""), "killed": (137, "killed by SIGKILL")}
    assert capfd.readouterr() == ("", "")


def test_jobs_that_are_cancelled_have_ended(make, slurm, tmp_path):
    executor, before = make(), slurm.jobs()
    slurm.drain()
    executor.submit(saver(tmp_path, "waiting"))
    assert executor.wait(1) == []
    (waiting,) = new(slurm, before)
    assert slurm.state(waiting) == "PENDING"
    slurm.say("scancel", waiting)
    slurm.drain(False)
    begin(executor, tmp_path, "running")
    slurm.say("scancel", *new(slurm, before))
    found = outcomes(executor, 2)
    assert found["waiting"].reason == "Slurm ended it, its state is CANCELLED"
    assert {out.exit for out in found.values()} <= {130, 143}
    assert len(new(slurm, before)) == 2  # nothing is submitted again


def test_suspended_job_is_waited_for(make, slurm, tmp_path):
    executor, before = make(), slurm.jobs()
    begin(executor, tmp_path, "cell")
    (number,) = new(slurm, before)
    slurm.control("suspend", number)
    (tmp_path / "go").touch()
    assert executor.wait(2) == []
    assert slurm.state(number) == "SUSPENDED"
    slurm.control("resume", number)
    assert outcomes(executor, 1)["cell"].exit == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_requeued_job_goes_on_and_gets_no_twin(restarted, make, slurm, tmp_path):
    executor, before = make(), slurm.jobs()
    begin(executor, tmp_path, "cell")
    (number,) = new(slurm, before)
    slurm.control("requeue", number)
    until((tmp_path / "slurm" / "cell" / f"{number}_0_result.json").exists)
    assert saved(tmp_path, "cell")
    if restarted:  # as after kill -9
        executor = make()
        executor.submit(saver(tmp_path, "cell"))
    assert executor.wait(1) == []
    slurm.control("update", f"jobid={number}", "starttime=now")  # Slurm waits for 2 min
    until(lambda: executor.wait(0.5) or len(starts(tmp_path, "cell")) == 2)
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert new(slurm, before) == [number]


def test_job_that_slurm_warns_saves_and_is_queued_again(make, slurm, tmp_path):
    executor, before = make(), slurm.jobs()
    begin(executor, tmp_path, "cell")
    (number,) = new(slurm, before)
    slurm.say("scancel", "--signal=USR2", number)  # as before its time limit
    until(lambda: slurm.state(number) == "PENDING")
    assert saved(tmp_path, "cell")
    assert executor.wait(1) == []
    slurm.control("update", f"jobid={number}", "starttime=now")
    until(lambda: executor.wait(0.5) or len(starts(tmp_path, "cell")) == 2)
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert new(slurm, before) == [number]


def test_restarted_study_finds_the_job_that_runs(make, slurm, tmp_path):
    before = slurm.jobs()
    begin(make(), tmp_path, "cell")
    again = make()  # as after kill -9
    again.submit(saver(tmp_path, "cell"))
    (tmp_path / "go").touch()
    assert outcomes(again, 1)["cell"].exit == 0
    assert len(new(slurm, before)) == len(starts(tmp_path, "cell")) == 1


def test_draining_node_ends_its_jobs_and_starts_none(make, slurm, tmp_path):
    executor = make()
    begin(executor, tmp_path, "running")
    slurm.drain()
    executor.submit(job(tmp_path, "waiting", ""))
    assert executor.wait(1) == []
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["running"].exit == 0
    assert executor.wait(1) == []
    slurm.drain(False)
    assert outcomes(executor, 1)["waiting"].exit == 0


def test_scheduler_is_killed_between_and_started_again(make, slurm, tmp_path):
    executor, before = make(), slurm.jobs()
    for name in ("one", "two"):
        begin(executor, tmp_path, name)
    executor.submit(saver(tmp_path, "third"))
    until(lambda: b"third" in (slurm.home / "state" / "job_state").read_bytes())
    slurm.kill("slurmctld")
    executor.submit(saver(tmp_path, "new"))
    assert executor.wait(2) == []
    assert executor.news().startswith("Slurm does not answer (squeue: ")
    (tmp_path / "go").touch()
    slurm.start("slurmctld")
    assert {out.exit for out in outcomes(executor, 4).values()} == {0}
    assert executor.news() == "Slurm answers again"
    assert len(new(slurm, before)) == 4


@pytest.mark.parametrize("order", ["warn", "requeue"])
def test_pack_is_queued_again_without_what_is_done(order, make, slurm, tmp_path):
    executor, before = make(cells=3), slurm.jobs()
    executor.submit(job(tmp_path, "done", ""))
    executor.submit(saver(tmp_path, "cell"))
    assert list(outcomes(executor, 1)) == ["done"]
    until(lambda: starts(tmp_path, "cell"))
    (number,) = new(slurm, before)
    if order == "warn":
        slurm.say("scancel", "--signal=USR2", number)  # as before its time limit
    else:
        slurm.control("requeue", number)
    until(lambda: slurm.state(number) == "PENDING")
    assert saved(tmp_path, "cell")
    assert executor.wait(1) == []
    slurm.control("update", f"jobid={number}", "starttime=now")  # Slurm waits for 2 min
    until(lambda: executor.wait(0.5) or len(starts(tmp_path, "cell")) == 2)
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert (tmp_path / "done.log").read_text().count("=== attempt") == 1
    assert new(slurm, before) == [number]


@pytest.mark.parametrize("cells", [1, 2])
def test_study_that_is_killed_and_started_again_submits_each_cell_once(cells, slurm, tmp_path):
    executor = {"kind": "slurm", "cells": cells, "slurm": OPTIONS}
    arms = {"none": {}, "other": {"overrides": {"optimizer.lr": 0.01}}}
    config = write_study(tmp_path, TINY, arms, executor=executor)
    out, log, before = tmp_path / "study", tmp_path / "log", slurm.jobs()
    command = [sys.executable, "-m", "rlplast.cli.main", "study", str(config), "--out", str(out)]

    def events() -> list[str]:
        rows = (out / "journal.jsonl").read_text().splitlines()
        return [json.loads(row)["event"] for row in rows]

    slurm.drain()  # or they would be done when the study is back
    with log.open("ab") as opened:
        first = subprocess.Popen(command, stdout=opened, stderr=opened)
        until(lambda: len(list(out.rglob("*_submitted.pkl"))) == 2 // cells, 60)  # after sbatch
        first.kill()
        first.wait()
        with subprocess.Popen(command, stdout=opened, stderr=opened) as second:
            try:
                until(lambda: len(events()) == 4, 60)
                slurm.drain(False)
                assert second.wait(90) == 0, log.read_text()
            finally:
                second.kill()
    assert events() == ["started"] * 4 + ["done"] * 2
    assert len(new(slurm, before)) == 2 // cells
    assert {status(folder) for folder in arm_folders(out).values()} == {"done"}
    assert "submitit" not in log.read_text()
