"""Jobs of each kind of executor; then those of this machine: signals, and a study that dies."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from unittest import mock

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.study import child, executors
from rlplast.study.executors import Job, cpus, make_executor
from tests.marks import slow
from tests.study.commands import (
    alive,
    begin,
    job,
    outcomes,
    run_program,
    saved,
    saver,
    starts,
    until,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's prctl")
TIME = {"time": 5}  # of a Slurm job
ECHO = (
    "print('out', os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS']); "
    "print('err', end='', file=sys.stderr)"
)


@pytest.fixture
def local(make):
    return make("local")


@pytest.fixture(params=["local", "slurm", slow("ray")])
def kind(request, slurm, monkeypatch):
    """A kind; Slurm is the stand-in, Ray is started on this machine."""
    library = {"local": "os", "slurm": "submitit", "ray": "ray"}[request.param]
    pytest.importorskip(library, reason=f'needs pip install "rlplast[{request.param}]"')
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return request.param


def test_every_job_comes_back_with_exit_code_reason_and_log(make, kind, tmp_path):
    executor = make(kind, **({"slurm": TIME} if kind == "slurm" else {}))
    assert executor.slots == (32 if kind == "slurm" else cpus())
    echo = job(tmp_path, "echo", ECHO, threads=2)
    executor.submit(echo)
    executor.submit(job(tmp_path, "failed", "raise SystemExit(3)"))
    executor.submit(job(tmp_path, "killed", "os.kill(os.getpid(), 9)"))
    executor.submit(Job("missing", (str(tmp_path / "no program"),), tmp_path / "missing.log"))
    found = outcomes(executor, 4)
    ends = {name: (outcome.exit, outcome.reason) for name, outcome in found.items()}
    ends.pop("missing")
    assert "no program" in found["missing"].reason + found["missing"].job.log.read_text()
    assert found["missing"].exit == 127
    assert ends == {"echo": (0, ""), "failed": (3, ""), "killed": (137, "killed by SIGKILL")}
    executor.submit(echo)
    again = outcomes(executor, 1)["echo"]
    assert (again.exit, again.reason) == (0, "")
    lines = [line.split(",")[0] for line in echo.log.read_text().splitlines()]
    output = ["out 2 2", "err"]
    assert [x for x in lines if x] == ["=== attempt 1", *output, "=== attempt 2", *output]


def test_stop_lets_running_jobs_save_and_ends_those_that_wait(make, kind, slurm, tmp_path):
    executor = make(kind, **({"slurm": TIME} if kind == "slurm" else {}))
    begin(executor, tmp_path, "running", threads=cpus())
    expected = {"running": 130}
    if kind != "local":  # which starts them at once
        (slurm / "full").touch()
        executor.submit(saver(tmp_path, "waiting"))
        expected["waiting"] = 143 if kind == "slurm" else 130
    assert {outcome.job.name: outcome.exit for outcome in executor.stop()} == expected
    assert saved(tmp_path, "running")
    assert not starts(tmp_path, "waiting")
    assert executor.stop() == executor.wait(0) == []
    assert not (slurm / "3.json").exists()  # nothing is submitted again


def test_wait_returns_at_the_first_end_or_after_the_time(local, tmp_path):
    assert local.wait(0) == []
    begin(local, tmp_path, "long")
    assert local.wait(0.1) == []
    local.submit(job(tmp_path, "short", ""))
    assert [outcome.job.name for outcome in local.wait(500)] == ["short"]


def test_stop_kills_a_job_that_does_not_end_and_what_it_started(local, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 0.2)
    other = saver(tmp_path, "other")
    code = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen({other.command!r})\n"
        "time.sleep(600)"
    )
    local.submit(job(tmp_path, "cell", code))
    until(lambda: starts(tmp_path, "other"))
    (outcome,) = local.stop()
    assert (outcome.exit, outcome.reason) == (137, "killed by SIGKILL")
    until(lambda: not alive(starts(tmp_path, "other")[0]))


def test_interrupted_stop_goes_on_and_asks_once(local, tmp_path, monkeypatch):
    ask = mock.Mock(wraps=local._backend.end)
    monkeypatch.setattr(local._backend, "end", ask)
    begin(local, tmp_path, "cell")
    with mock.patch("time.sleep", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        local.stop()
    assert [outcome.exit for outcome in local.stop()] == [130]
    ask.assert_called_once()


@linux
def test_jobs_end_when_their_study_is_killed(tmp_path):
    study = (
        "import pathlib\n"
        "from rlplast.study.executors import make_executor\n"
        "from tests.study.commands import begin, run_program\n"
        "executor = make_executor('local', 1, 1, {}, run_program)\n"
        f"begin(executor, pathlib.Path({str(tmp_path)!r}), 'cell')\n"
        "executor.wait(600)"
    )
    with subprocess.Popen([sys.executable, "-c", study]) as process:
        until(lambda: starts(tmp_path, "cell"))
        process.kill()
    until(lambda: not alive(starts(tmp_path, "cell")[0]))
    assert saved(tmp_path, "cell")


@linux
@pytest.mark.parametrize(("parent", "code"), [(None, 5), ("another", -signal.SIGTERM)])
def test_command_ends_at_once_if_its_parent_is_gone(parent, code, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != child.PARENT}
    if parent:
        environment[child.PARENT] = "1" if os.getppid() != 1 else "2"
    command = job(tmp_path, "cell", "raise SystemExit(5)").command
    assert subprocess.run(command, env=environment, check=False).returncode == code


def test_slurms_warning_signal_passes_a_job_by(local, tmp_path):
    os.kill(begin(local, tmp_path, "cell"), signal.SIGUSR2)
    assert local.wait(0.3) == []
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_each_job_gets_the_device_with_the_fewest(make, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,9")
    executor = make("local", gpus=0.5, devices=2)
    code = "print('gpu ' + os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(600)"  # one write
    for batch in "ab":  # the second one finds all free again
        logs = [tmp_path / f"{batch}{i}.log" for i in range(3)]
        for log in logs:
            executor.submit(job(tmp_path, log.stem, code))
        until(lambda logs=logs: all("\ngpu" in log.read_text() for log in logs))
        seen = [log.read_text().splitlines()[-1] for log in logs]
        assert seen == ["gpu 4", "gpu 7", "gpu 4"]
        executor.stop()


@pytest.mark.parametrize(
    ("options", "count", "visible", "slots", "seen"),
    [
        ({}, 2, None, 64, ["0", "1", "0"]),
        ({}, 2, "GPU-5fa, MIG-7", 64, ["GPU-5fa", "MIG-7", "GPU-5fa"]),
        ({}, 1, "3,-1,4", 64, ["3", "3", "3"]),  # CUDA sees none behind a -1
        ({}, 0, None, 64, ["unset"] * 3),
        ({"gpus": 0.25}, 2, None, 8, ["0", "1", "0"]),
        ({"gpus": 1}, 4, None, 4, ["0", "1", "2"]),
        ({"gpus": 0.25, "devices": 1}, 2, None, 4, ["0", "0", "0"]),
        ({"gpus": 0}, 2, "4,7", 64, [""] * 3),
        ({"devices": 0}, 2, None, 64, [""] * 3),
    ],
)
def test_jobs_are_spread_over_the_gpus_that_torch_sees(
    options, count, visible, slots, seen, make, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(executors, "cpus", lambda: 64)
    executor = make("local", **options)
    assert executor.slots == slots
    code = "print('gpu:' + os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')); time.sleep(600)"
    logs = [tmp_path / f"{i}.log" for i in range(3)]
    for log in logs:
        executor.submit(job(tmp_path, log.stem, code))
    until(lambda: all("\ngpu:" in log.read_text() for log in logs))
    assert [log.read_text().splitlines()[-1] for log in logs] == [f"gpu:{name}" for name in seen]


def test_processes_of_a_job_get_a_gpu_each(make, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(executors, "cpus", lambda: 64)
    executor = make("local", threads=2, processes=2, gpus=1)
    assert executor.slots == 2
    code = "print('gpu:' + os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(600)"
    logs = [tmp_path / f"{i}.log" for i in range(2)]
    for log in logs:
        executor.submit(dataclasses.replace(job(tmp_path, log.stem, code), processes=2))
    until(lambda: all("\ngpu:" in log.read_text() for log in logs))
    assert [log.read_text().splitlines()[-1] for log in logs] == ["gpu:0,1", "gpu:2,3"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"devices": 1}, "processes = 2, each on a GPU of its own, and devices is 1: allowed are"),
        ({"gpus": 0.5, "devices": 2}, "gpus is 0.5 with processes = 2: allowed is 0 or 1"),
    ],
)
def test_processes_that_find_no_gpus_are_refused(options, says, make):
    with pytest.raises(ConfigError, match=re.escape(says)):
        make("local", processes=2, **options)


@pytest.mark.parametrize(
    ("jobs", "threads", "options", "slots"),
    [
        (None, 10_000, {}, 1),
        (7, 1, {}, 7),
        (None, 1, {"gpus": 0.4, "devices": 2}, 4),
        (None, 1, {"gpus": 1, "devices": 1000}, 64),
        (None, 1, {"devices": 1}, 64),
    ],
)
def test_slots_are_what_the_machine_has_room_for(jobs, threads, options, slots, monkeypatch):
    monkeypatch.setattr(executors, "cpus", lambda: 64)
    assert make_executor("local", jobs, threads, options, run_program).slots == slots


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("locl", {}, "did you mean 'local'?"),
        ("local", {"device": 1}, "did you mean 'devices'?"),
        ("local", {"gpus": -1}, "gpus is -1: allowed is 0, or 0.01 to 1"),
        ("local", {"gpus": 1}, "devices is 0"),
        ("local", {"gpus": 1e-310}, "gpus is 1e-310"),
        ("local", {"devices": 1.5}, "devices is 1.5: allowed is how many GPUs"),
        ("local", {"grace": 3}, "unknown key 'grace': allowed: devices, gpus"),
        ("ray", {"gpus": True}, "gpus is True"),
        ("ray", {"retries_on_node_death": 1}, "allowed: address, gpus"),
        ("slurm", {"requeues": 5}, "allowed: cells, slurm"),
        ("slurm", {"cells": 0}, "cells is 0: allowed is a whole number, 1 to 1000"),
        ("slurm", {"cells": 1001}, "cells is 1001"),
        ("slurm", {"cells": True}, "cells is True"),
        ("slurm", {"cells": 2.0}, "in one Slurm job; default: 1"),
        ("slurm", {}, "slurm.time is None"),
        ("slurm", {"slurm": {"time": 7.5}}, "time is 7.5: write the whole minutes of a job"),
        ("slurm", {"slurm": TIME | {"partitoin": "x"}}, "did you mean 'partition'"),
        ("slurm", {"slurm": TIME | {"cpus_per_task": 4}}, "unknown key 'cpus_per_task'"),
        ("slurm", {"slurm": "fast"}, "not a mapping"),
        ("slurm", {"slurm": {"time": 2}}, "leaves 0 s a try: allowed is 5 minutes or more"),
        ("slurm", {"slurm": {"time": 4}}, "150 s before its end (signal_delay_s)"),
        ("slurm", {"slurm": {"time": 4}}, "which leaves 30 s a try"),
        ("slurm", {"slurm": {"time": 2, "signal_delay_s": 1}}, "allowed is 3 minutes or more"),
        ("slurm", {"slurm": TIME | {"signal_delay_s": -90}}, "signal_delay_s is -90: allowed are"),
        ("slurm", {"slurm": TIME | {"signal_delay_s": True}}, "signal_delay_s is True"),
        ("slurm", {"slurm": TIME | {"nodes": 2}}, "slurm.nodes is 2: allowed is 1"),
        ("slurm", {"slurm": TIME | {"ntasks_per_node": 2}}, "ntasks_per_node is 2: allowed is 1"),
        (
            "slurm",
            {"slurm": TIME | {"additional_parameters": {"ntasks_per_node": 2}}},
            "additional_parameters.ntasks_per_node is 2, which is not allowed: a cell is one",
        ),
        ("slurm", {"slurm": TIME | {"additional_parameters": "-N 2"}}, "is '-N 2', not a mapping"),
        ("slurm", {"slurm": TIME}, "no srun on this machine"),
    ],
)
def test_what_is_not_allowed_is_refused(kind, options, says, monkeypatch, tmp_path):
    pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        make_executor(kind, 1, 1, options, run_program)
    assert says in str(refused.value)


@pytest.mark.parametrize(("kind", "library"), [("ray", "ray"), ("slurm", "submitit")])
def test_missing_library_is_named_with_its_extra(kind, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf'pip install "rlplast\[{kind}\]"'):
        make_executor(kind, 1, 1, {}, run_program)
