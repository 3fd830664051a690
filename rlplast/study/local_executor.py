"""Jobs as processes of this machine, forked from a server that has imported what they need.

Importing PyTorch takes longer than many a run of a small network: the server does it once.

- `make`: a backend, and how many jobs there is room for.
- `LocalBackend`: starts jobs, which end with this process.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection, forkserver
from types import ModuleType
from typing import Any

import torch

from rlplast.core.errors import ConfigError
from rlplast.study import child
from rlplast.study.executors import Job, Main, cpus, gpus_of, room_for

__all__ = ["LocalBackend", "make"]

# Slow to import. The server imports those that this process has, since it built every arm.
_SLOW = ("torch._dynamo", "sklearn.datasets", "altair", "gymnasium", "mujoco")


def make(
    threads: int, options: Mapping[str, Any], main: Main, processes: int
) -> "tuple[LocalBackend, int]":
    """Return a backend, and how many jobs this machine has room for.

    Args:
        threads: CPUs of each process of a job.
        options: ``devices``: GPUs of this machine, by default those that PyTorch sees; ``gpus``: of
            a job, 0 for none. Where it is not said, jobs are spread over the devices.
        main: what a job's process calls.
        processes: of a job.

    Raises:
        ConfigError: if there are no devices for jobs that need one, or too few for a job.
    """
    gpus, none = gpus_of(options, processes), options.get("gpus") == 0
    seen = 0 if none else torch.cuda.device_count()  # asks NVML: a context would hold memory
    devices = options.get("devices", seen)
    least = 1 if gpus else 0
    if type(devices) is not int or not least <= devices <= 1000:
        raise ConfigError(
            f"executor local: devices is {devices!r}: allowed is how many GPUs this machine has, "
            f"{least} to 1000 where gpus is {gpus}; default: those that PyTorch sees, {seen}; "
            "to plan for another machine, say what that one has"
        )
    if not none and 0 < devices < processes:
        raise ConfigError(
            f"executor local: processes = {processes}, each on a GPU of its own, and devices is "
            f"{devices}: allowed are so many processes, or gpus: 0 for the CPU"
        )
    room = max(1, room_for(threads, gpus, cpus(), devices, processes))
    if none or options.get("devices") == 0:
        return LocalBackend(main, threads, [""]), room
    visible = child.visible_gpus() or [str(i) for i in range(devices)]
    return LocalBackend(main, threads, visible[:devices]), room


class LocalBackend:
    """Processes of this machine, which end with this one.

    Args:
        main: what a job's process calls.
        threads: CPUs of a job.
        gpus: names that CUDA_VISIBLE_DEVICES may have; each process of a job gets one, of those
            with the fewest jobs.
            Without any, jobs see what this process sees.
    """

    pause = 0.02

    def __init__(self, main: Main, threads: int, gpus: Sequence[str] = ()) -> None:
        self._main, self._threads, self._gpus = main, threads, gpus
        self._gpu: dict[Any, str | None] = {}  # of each job that runs
        self._context = multiprocessing.get_context("forkserver")

    def start(self, job: Job) -> Any:
        """Fork a process, in a session of its own."""
        gpu = child.least_loaded(self._gpus, self._gpu.values(), job.processes)
        environment = child.environment(job, gpu)
        child.begin_log(job)
        self._start_server()
        process = self._context.Process(target=_run, args=(self._main, job, environment))
        with _without_main():
            process.start()
        self._gpu[process] = gpu
        return process

    def _start_server(self) -> None:
        """Start the server if there is none yet."""
        slow = [name for name in _SLOW if name in sys.modules]
        self._context.set_forkserver_preload([self._main.__module__, *slow])
        with _environment_of_server(self._threads), child.deaf():
            forkserver.ensure_running()

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""
        if handle.exitcode is None:
            return None
        self._gpu.pop(handle, None)
        return child.exit_of(handle.exitcode)

    def end(self, handle: Any, force: bool) -> None:
        """Send SIGTERM, or SIGKILL, also to what it started."""
        if not force:
            handle.terminate()
        elif handle.exitcode is None:
            child.kill(handle.pid)

    def news(self) -> str:
        """Nothing."""
        return ""

    def close(self) -> None:
        """Nothing is left to close: the server ends once this process and its jobs have."""


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start a process that does not run the file that this one began with.

    It would, to find what that defines. A script that runs a study would run it there again.
    """
    before = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


@contextlib.contextmanager
def _environment_of_server(threads: int) -> Iterator[None]:
    """Start a server here: it imports from where this process does, with so many threads."""
    before = dict(os.environ)
    path = os.pathsep.join(filter(None, sys.path))
    os.environ.update(child.threads(threads), PYTHONPATH=path, PYTHONSAFEPATH="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(main: Main, job: Job, environment: Mapping[str, str]) -> None:
    """Be the process of a job."""
    os.setsid()
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(environment)
    with open(job.log, "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # if it is killed
    threading.Thread(target=_end_with_study, daemon=True).start()
    sys.exit(main(job.command))


def _end_with_study() -> None:
    """Have this process save and end when the study's is gone."""
    study = multiprocessing.parent_process()
    if study is not None:
        connection.wait([study.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
