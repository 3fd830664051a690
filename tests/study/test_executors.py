"""What workers are started with: how many, on which GPUs, in which Slurm jobs."""

import multiprocessing
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.study import executors, node
from rlplast.study.executors import make_executor
from rlplast.study.work import gpus_of_worker
from tests.refused import check_refused
from tests.study.commands import until

TIME = {"time": 240}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What would be started on this machine of 64 CPUs."""
    found: list[Any] = []
    monkeypatch.setattr(executors, "_cpus", lambda: 64)
    monkeypatch.setattr(
        executors.node, "begin", lambda words, log, environment: found.append((words, environment))
    )
    return found


@pytest.mark.parametrize(
    ("options", "count", "visible", "slots", "seen"),
    [
        ({}, 2, None, 64, ["0", "1", "0"]),
        ({}, 2, "GPU-5fa,MIG-7", 64, ["GPU-5fa", "MIG-7", "GPU-5fa"]),
        ({}, 1, "3,-1,4", 64, ["3", "3", "3"]),  # CUDA sees none behind a -1
        ({}, 0, None, 64, [None] * 3),
        ({"gpus": 0.25}, 2, None, 8, ["0", "1", "0"]),
        ({"gpus": 1}, 4, None, 4, ["0", "1", "2"]),
        ({"gpus": 0.25, "devices": 1}, 2, None, 4, ["0", "0", "0"]),
        ({"gpus": 0}, 2, "4,7", 64, [None] * 3),
        ({"devices": 0}, 2, None, 64, [None] * 3),
    ],
)
def test_workers_are_spread_over_the_gpus_that_torch_sees(
    options: Any,
    count: int,
    visible: str | None,
    slots: int,
    seen: Any,
    begun: Any,
    monkeypatch: Any,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    executor = make_executor("local", None, 1, options)
    executor.start(Path("study"), 1000)
    ((words, environment),) = begun
    assert executor.slots == slots == int(words[words.index("--jobs") + 1])
    gpus = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    assert [gpus_of_worker(gpus, number, 1) for number in range(3)] == seen
    if options.get("gpus") == 0 or options.get("devices") == 0:
        assert environment["CUDA_VISIBLE_DEVICES"] == ""


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
def test_slots_are_what_the_machine_has_room_for(
    jobs: int | None, threads: int, options: Any, slots: int, begun: Any
) -> None:
    executor = make_executor("local", jobs, threads, options)
    assert executor.slots == slots
    executor.start(Path("study"), 2)  # with so many cells left, more workers would be idle
    ((words, environment),) = begun
    assert words[words.index("--jobs") + 1] == str(min(2, slots))
    assert environment["OMP_NUM_THREADS"] == str(threads)


REFUSED: list[tuple[tuple[str, int, Any], str]] = [
    (("locl", 1, {}), "did you mean 'local'?"),
    (("local", 1, {"device": 1}), "did you mean 'devices'?"),
    (("local", 1, {"gpus": -1}), "executor.gpus = -1: allowed is [0, 1]"),
    (("local", 1, {"gpus": 1e-310}), "executor.gpus = 1e-310"),
    (
        ("local", 1, {"gpus": 1}),
        "devices = 0 with processes = 1: allowed is a GPU for each",
    ),
    (("local", 1, {"devices": 1.5}), "devices = 1.5: allowed is a whole number in [0, 1000]"),
    (("local", 2, {"devices": 1}), "executor.devices = 1 with processes = 2"),
    (("local", 2, {"gpus": 0.5, "devices": 2}), "executor.gpus = 0.5 with processes = 2"),
    (("ray", 1, {"gpus": True}), "executor.gpus = True"),
    (("ray", 1, {"retries_on_node_death": 1}), "allowed: address, gpus"),
    (("slurm", 1, {"requeues": 5}), "allowed: cells, slurm"),
    (
        ("slurm", 1, {"cells": True}),
        "cells = True: allowed is a whole number in [1, 1000]",
    ),
    (("slurm", 1, {}), "executor.slurm has no time: write the whole minutes of a job"),
    (("slurm", 1, {"slurm": "fast"}), "executor.slurm = 'fast': allowed is a mapping"),
]
REFUSED_SLURM: list[tuple[dict[str, Any], str]] = [
    ({"time": 7.5}, "slurm.time = 7.5: allowed is a whole number"),
    (TIME | {"partitoin": "x"}, "did you mean 'partition'"),
    (TIME | {"cpus_per_task": 4}, "unknown key 'cpus_per_task'"),
    ({"time": 4}, "allowed is 5 minutes or more"),
    ({"time": 2, "signal_delay_s": 1}, "allowed is 3 minutes or more"),
    (TIME | {"signal_delay_s": True}, "signal_delay_s = True"),
    (TIME | {"additional_parameters": "-N 2"}, "'-N 2': allowed is a mapping"),
    (TIME, "no srun on this machine"),
]


def test_what_is_not_allowed_is_refused(monkeypatch: Any, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = [(("slurm", 1, {"slurm": own}), says) for own, says in REFUSED_SLURM]
    check_refused(lambda row: make_executor(row[0], 1, 1, row[2], row[1]), REFUSED + rows)


def test_whole_numbers_of_a_job_are_written_as_such() -> None:
    found = executors._checked({"time": 1e2, "signal_delay_s": 60.0}, {"time", "signal_delay_s"})
    assert (str(found["time"]), str(found["signal_delay_s"])) == ("100", "60")


@pytest.mark.parametrize(("kind", "library"), [("ray", "ray"), ("slurm", "submitit")])
def test_missing_library_is_named_with_its_extra(kind: str, library: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf'pip install "rlplast\[{kind}\]"'):
        make_executor(kind, 1, 1, {})


def test_workers_that_cannot_begin_are_told_with_their_last_words(
    tmp_path: Path,
) -> None:
    executor = make_executor("local", 1, 1, {})
    assert executor.ended() is None
    executor.start(tmp_path, 1)  # which is no study's folder
    deadline = time.monotonic() + 60
    while (said := executor.ended()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert said.endswith("it has no study.json")
    shutil.rmtree(tmp_path / "logs")
    assert executor.ended() == "without a word"
    executor.stop()


def test_slurm_job_has_its_workers_save_and_leaves_its_end_to_slurm(tmp_path: Path) -> None:
    """Slurm tells this process alone (proctrack/cgroup), and queues no job again that has ended."""
    log = tmp_path / "workers.log"
    worker = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved')); "
        "print('begun', flush=True); time.sleep(60)"
    )
    job = node.SlurmJob([sys.executable, "-c", worker], log, {})
    process = multiprocessing.get_context("fork").Process(target=job, args=(0,))
    process.start()
    until(lambda: log.exists() and "begun" in log.read_text(), 60)
    process.terminate()
    until(lambda: "saved" in log.read_text(), 60)
    process.join(1)
    assert process.is_alive()
    process.kill()
    process.join()
