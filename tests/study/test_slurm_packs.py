"""Several cells in one Slurm job, on a Slurm that a script plays."""

import os
import signal

import pytest

pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from rlplast.study import slurm_executor
from tests.cli.commands import command
from tests.cli.studies import ALL, ARMS, TINY, results
from tests.study import fake_slurm
from tests.study.commands import (
    alive,
    job,
    outcomes,
    saved,
    saver,
    starts,
    until,
    warn,
)
from tests.study.inline import journal, run_study, write_study

pytestmark = pytest.mark.slow
TIME = {"time": 5}


def begin(executor, folder, *names):
    """Start savers and wait until they run; their process ids."""
    jobs = [saver(folder, name) for name in names]
    for one in jobs:
        executor.submit(one)
    until(lambda: executor.wait(0) or all(starts(folder, name) for name in names))
    return [starts(folder, name)[-1] for name in names]


def attempts(folder, name):
    return (folder / f"{name}.log").read_text().count("=== attempt ")


def test_cells_share_a_slurm_job_and_have_their_own_ends(make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=3)
    assert executor.slots == 96
    executor.submit(job(tmp_path, "done", "print('out')", threads=2))
    executor.submit(job(tmp_path, "failed", "raise SystemExit(3)"))
    assert not (slurm / "1.json").exists()
    executor.submit(job(tmp_path, "killed", "os.kill(os.getpid(), 9)"))
    executor.submit(job(tmp_path, "alone", ""))  # its pack is not full: it goes at the next look
    assert not (slurm / "2.json").exists()
    found = {name: (out.exit, out.reason) for name, out in outcomes(executor, 4).items()}
    assert found == {
        "done": (0, ""),
        "failed": (3, ""),
        "killed": (137, "killed by SIGKILL"),
        "alone": (0, ""),
    }
    assert (tmp_path / "done.log").read_text().endswith("\nout\n")
    assert not (slurm / "3.json").exists()
    text = [fake_slurm.state(slurm, i)["text"].splitlines() for i in (1, 2)]
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --job-name=done+2"} <= set(text[0])
    assert {"#SBATCH --cpus-per-task=1", "#SBATCH --job-name=alone"} <= set(text[1])
    assert (tmp_path / "slurm_packs" / "done-1" / "killed.json").exists()
    assert (tmp_path / "slurm" / "alone" / "2_0_result.json").exists()


@pytest.mark.parametrize(
    ("visible", "seen"), [("4,GPU-7a", ["4", "GPU-7a", "4"]), (None, ["unset"] * 3)]
)
def test_each_cell_gets_the_gpu_of_the_job_with_the_fewest(
    visible, seen, make, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    executor = make("slurm", slurm=TIME, cells=3)
    code = "print('gpu:' + os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')); time.sleep(2)"
    for name in "abc":
        executor.submit(job(tmp_path, name, code))
    outcomes(executor, 3)
    logs = [(tmp_path / f"{name}.log").read_text() for name in "abc"]
    assert [log.splitlines()[-1] for log in logs] == [f"gpu:{name}" for name in seen]


def test_cell_that_is_killed_is_told_at_once_and_retried_in_a_new_job(make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=2)
    one, two = begin(executor, tmp_path, "one", "two")
    os.kill(one, signal.SIGKILL)
    outcome = outcomes(executor, 1)["one"]
    assert (outcome.exit, outcome.reason) == (137, "killed by SIGKILL")
    assert alive(two)
    executor.submit(saver(tmp_path, "one"))
    until(lambda: executor.wait(0) or len(starts(tmp_path, "one")) == 2)
    assert fake_slurm.state(slurm, 2)["State"] == "RUNNING"
    warn(two)  # its pack is queued again, without the one that another job has now
    until(lambda: len(starts(tmp_path, "two")) == 2)
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(executor, 2).values()} == {0}
    assert (attempts(tmp_path, "one"), attempts(tmp_path, "two")) == (2, 2)
    assert not (slurm / "3.json").exists()


def test_pack_that_nears_its_time_limit_saves_and_runs_what_is_not_done(make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=3)
    executor.submit(job(tmp_path, "done", ""))
    for name in ("one", "two"):
        executor.submit(saver(tmp_path, name))
    assert list(outcomes(executor, 1)) == ["done"]
    until(lambda: starts(tmp_path, "one") and starts(tmp_path, "two"))
    warn(starts(tmp_path, "one")[0])
    until(lambda: len(starts(tmp_path, "one")) == len(starts(tmp_path, "two")) == 2)
    assert saved(tmp_path, "one")
    assert saved(tmp_path, "two")
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(executor, 2).values()} == {0}
    assert attempts(tmp_path, "done") == 1
    assert not (slurm / "2.json").exists()


def test_pack_whose_time_limit_comes_too_often_says_so(make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_AGAIN", 0)
    executor = make("slurm", slurm=TIME, cells=2)
    warn(begin(executor, tmp_path, "one", "two")[0])
    for outcome in outcomes(executor, 2).values():
        assert (outcome.exit, outcome.reason[:34]) == (137, "its time limit came too often: rai")


@pytest.mark.parametrize(("state", "code"), [("PREEMPTED", 0), ("OUT_OF_MEMORY", 137)])
def test_pack_that_slurm_ends(state, code, make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "_SLOW", 0)
    executor = make("slurm", slurm=TIME, cells=3)
    executor.submit(job(tmp_path, "done", ""))
    for name in ("one", "two"):
        executor.submit(saver(tmp_path, name))
    assert outcomes(executor, 1)["done"].exit == 0
    until(lambda: starts(tmp_path, "one") and starts(tmp_path, "two"))
    pids = [starts(tmp_path, name)[0] for name in ("one", "two")]
    fake_slurm.set_state(slurm, 1, State=state)
    os.killpg(fake_slurm.state(slurm, 1)["pid"], signal.SIGKILL)
    until(lambda: not any(map(alive, pids)))
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(executor, 2).values()} == {code}
    assert (slurm / "2.json").exists() == (code == 0)
    assert not (slurm / "3.json").exists()  # they share a job again


def test_stop_ends_all_cells_of_all_packs(make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=2)
    begin(executor, tmp_path, "one", "two")
    (slurm / "full").touch()
    for name in ("three", "four", "five"):
        executor.submit(saver(tmp_path, name))
    codes = {outcome.job.name: outcome.exit for outcome in executor.stop()}
    assert codes.pop("three") in (130, 143)  # cancelled, or seen to wait
    assert codes.pop("four") in (130, 143)
    assert codes == {"one": 130, "two": 130, "five": 130}
    assert saved(tmp_path, "one")
    assert saved(tmp_path, "two")
    assert not starts(tmp_path, "three")
    assert fake_slurm.state(slurm, 2)["State"].startswith("CANCELLED")
    assert not (slurm / "3.json").exists()
    (slurm / "full").unlink()
    (tmp_path / "go").touch()
    executor.submit(saver(tmp_path, "one"))  # as when the study goes on
    executor.submit(saver(tmp_path, "three"))
    assert {out.exit for out in outcomes(executor, 2).values()} == {0}


def test_cells_gather_while_there_are_as_many_slurm_jobs_as_may_be(make, slurm, tmp_path):
    executor = make("slurm", jobs=3, slurm=TIME, cells=2)  # two Slurm jobs at most
    begin(executor, tmp_path, "one", "two")
    begin(executor, tmp_path, "three")
    for name in ("four", "five"):
        executor.submit(job(tmp_path, name, ""))
    assert executor.wait(0.5) == []
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(executor, 5).values()} == {0}
    assert fake_slurm.state(slurm, 3)["text"].count("--job-name=four+1")
    assert not (slurm / "4.json").exists()


def test_pack_whose_folder_cannot_be_made_has_ended(make, slurm, tmp_path):
    (tmp_path / "slurm_packs").touch()
    executor = make("slurm", slurm=TIME, cells=2)
    for name in ("one", "two"):
        executor.submit(job(tmp_path, name, ""))
    for outcome in outcomes(executor, 2).values():
        assert outcome.exit == 127
        assert "slurm_packs" in outcome.reason


@pytest.mark.parametrize("cells", [1, 2, 3])
@pytest.mark.parametrize("waits", [False, True])
def test_restarted_study_finds_its_packs(waits, cells, make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=2)
    if waits:
        (slurm / "full").touch()
        for name in ("one", "two"):
            executor.submit(saver(tmp_path, name))
    else:
        begin(executor, tmp_path, "one", "two")
    again = make("slurm", slurm=TIME, cells=cells)  # as after kill -9: nobody asked to stop
    for name in ("two", "one"):
        again.submit(saver(tmp_path, name))
    assert again.wait(0.5) == []
    if waits:
        fake_slurm.start(slurm, "1")
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(again, 2).values()} == {0}
    assert attempts(tmp_path, "one") == attempts(tmp_path, "two") == 1
    assert not (slurm / "2.json").exists()


def test_restarted_study_with_packs_finds_a_cell_that_is_alone(make, slurm, tmp_path):
    begin(make("slurm", slurm=TIME), tmp_path, "one")
    again = make("slurm", slurm=TIME, cells=2)
    begin(again, tmp_path, "one", "two")
    (tmp_path / "go").touch()
    assert {out.exit for out in outcomes(again, 2).values()} == {0}
    assert attempts(tmp_path, "one") == 1
    assert not (slurm / "3.json").exists()


def test_pack_waits_for_slurm_to_answer(make, slurm, tmp_path):
    executor = make("slurm", slurm=TIME, cells=2)
    (slurm / "down").touch()
    for name in ("one", "two"):
        executor.submit(job(tmp_path, name, ""))
    assert executor.wait(0.5) == []
    (slurm / "down").unlink()
    assert {out.exit for out in outcomes(executor, 2).values()} == {0}
    assert not (slurm / "2.json").exists()


def test_pack_that_slurm_refuses_comes_back_with_its_words(make, slurm, tmp_path):
    fake_slurm.refuse(slurm)
    executor = make("slurm", slurm=TIME, cells=2)
    for name in ("one", "two"):
        executor.submit(job(tmp_path, name, ""))
    for outcome in outcomes(executor, 2).values():
        assert outcome.exit == 127
        assert "no such partition" in outcome.reason


@pytest.mark.slow
def test_study_in_packs_has_the_results_of_one_without(make, slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor.SlurmBackend, "pause", 0.1)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    executor = {"kind": "slurm", "cells": 2, "slurm": TIME}
    outcome, _ = run_study(write_study(tmp_path, TINY, ARMS), plain)
    assert outcome.code == 0, outcome
    outcome = command(
        "study", write_study(tmp_path, TINY, ARMS, executor=executor), "--out", packed
    )
    assert outcome.code == 0, outcome
    assert results(packed) == results(plain)
    assert sorted(journal(packed, "done")) == sorted(ALL)
    assert len(list((packed / "logs" / "slurm_packs").iterdir())) < len(ALL)
