"""Commands that executors run in tests, and a way to wait for their traces."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlplast.study import child
from rlplast.study.executors import Executor, Job, Outcome

# The file is run on its own: importing rlplast would import torch into every command.
_START = (
    "import os, pathlib, runpy, signal, subprocess, sys, time; "
    f"runpy.run_path({child.__file__!r})['die_with_parent'](); "
)
_SAVE = """
def save(*_):
    pathlib.Path({trace!r} + ".saved").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
with open({trace!r}, "a") as trace:
    trace.write(f"{{os.getpid()}}\\n")
while not pathlib.Path({go!r}).exists():
    time.sleep(0.02)
"""


def run_program(command: Sequence[str]) -> int:
    """Run a program and end as it does; what the process of a local job calls here."""
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        print(error)
        return 127
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    code = program.wait()
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def job(folder: Path, name: str, code: str, threads: int = 1) -> Job:
    """A job that runs Python code."""
    command = (sys.executable, "-c", _START + code)
    return Job(name, command, folder / f"{name}.log", threads)


def saver(folder: Path, name: str, threads: int = 1) -> Job:
    """A job that saves at SIGTERM with exit code 130, and ends once there is a file `go`."""
    code = _SAVE.format(trace=str(folder / f"{name}.trace"), go=str(folder / "go"))
    return job(folder, name, code, threads)


def starts(folder: Path, name: str) -> list[int]:
    """Process ids of a saver's attempts."""
    trace = folder / f"{name}.trace"
    return [int(line) for line in trace.read_text().splitlines()] if trace.exists() else []


def saved(folder: Path, name: str) -> bool:
    """Whether a saver has saved."""
    return (folder / f"{name}.trace.saved").exists()


def begin(executor: Executor, folder: Path, name: str, threads: int = 1) -> int:
    """Start a saver and wait until it runs; its process id."""
    executor.submit(saver(folder, name, threads))
    until(lambda: starts(folder, name))
    return starts(folder, name)[0]


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def outcomes(executor: Executor, count: int) -> dict[str, Outcome]:
    """Wait for so many outcomes; by name of the job."""
    found: list[Outcome] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += executor.wait(1.0)
    assert len(found) == count
    return {outcome.job.name: outcome for outcome in found}


def warn(pid: int) -> None:
    """Signal to a Slurm job that its time limit nears: all of its processes get it."""
    watcher = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    for process in (pid, watcher):
        os.kill(process, signal.SIGUSR2)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
