"""Where the jobs of a study run: on this machine, on a Ray cluster, through Slurm.

- `Outcome`: how a job ended.
- `Executor`: submit jobs, wait for outcomes, stop.
- `make_executor`: one of a kind, from its options.
- `Backend`: what a kind provides; `LocalBackend`: processes of this machine, forked from a server
  that has imported what they need. Importing PyTorch takes longer than many a run of a small
  network: the server does it once.

A job is an idempotent command that carries on where it stopped when it is started again. Every
job that was submitted comes back as an outcome with an exit code, whatever happened to it.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from types import ModuleType
from typing import Any

import torch

from rlplast.core.errors import ConfigError, RlplastError, check_choice, check_known, shortened
from rlplast.study import child
from rlplast.study.child import Job

__all__ = ["Backend", "Executor", "Job", "LocalBackend", "Main", "Outcome", "make_executor"]

Main = Callable[[Sequence[str]], int]

_OPTIONS = {"local": ("devices", "gpus"), "ray": ("address", "gpus"), "slurm": ("cells", "slurm")}
_PATIENCE = child.GRACE + 60.0  # seconds: a cluster takes a while to say that a job has ended
_LAST = 20.0  # seconds until the end of a job that was killed is seen
# Slow to import. The server imports those that this process has, since it built every arm.
_SLOW = ("torch._dynamo", "sklearn.datasets", "altair", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    exit: int  # code of the command; 128 + n if signal n killed it
    reason: str = ""  # in words, where the exit code does not say it


class Backend:
    """What a kind of executor provides; a handle is whatever its `start` returns."""

    pause = 0.2  # seconds between two looks at the jobs

    def start(self, job: Job) -> Any:
        """Start a job; OSError or RlplastError if that fails."""
        raise NotImplementedError

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""
        raise NotImplementedError

    def end(self, handle: Any, force: bool) -> None:
        """Ask it, once, to save and end; with force, kill it."""
        raise NotImplementedError

    def news(self) -> str:
        """Return news of the cluster that was not reported yet, or nothing."""
        return ""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(eq=False)
class _Running:
    job: Job
    handle: Any
    asked: bool = False


class Executor:
    """Runs jobs through a backend.

    Args:
        backend: starts jobs and tells how they ended.
        slots: how many jobs may run at once; the caller keeps to it.
        processes: of each job.
    """

    def __init__(self, backend: Backend, slots: int, processes: int = 1) -> None:
        self.slots, self.processes = slots, processes
        self._backend = backend
        self._running: list[_Running] = []
        self._ended: list[Outcome] = []  # and not yet returned

    def submit(self, job: Job) -> None:
        """Start a job; one that cannot be started has ended."""
        try:
            self._running.append(_Running(job, self._backend.start(job)))
        except (OSError, RlplastError) as error:
            self._ended.append(Outcome(job, *child.cannot_start(error)))

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of jobs that ended, as soon as there is one, or [] after a time."""
        return self._look(seconds, lambda: bool(self._ended))

    def news(self) -> str:
        """Return news of the cluster that was not reported yet, or nothing."""
        return self._backend.news()

    def stop(self) -> list[Outcome]:
        """Have all running jobs save and end, wait for them, and return their outcomes.

        Jobs that take too long are killed. When Ctrl-C interrupts it, the next call goes on where
        it was: no job is asked twice.
        """
        for running in reversed(self._running):  # those that wait first, or they would get the room
            if not running.asked:
                running.asked = True
                self._backend.end(running.handle, force=False)
        ended = self._look(_PATIENCE, lambda: not self._running)
        for running in self._running:
            self._backend.end(running.handle, force=True)
        ended += self._look(_LAST, lambda: not self._running)
        unseen = "killed, but its end was not seen"
        ended += [Outcome(running.job, child.KILLED, unseen) for running in self._running]
        self._running = []
        return ended

    def close(self) -> None:
        """Stop what still runs, and let go of the cluster."""
        self.stop()
        self._backend.close()

    def _look(self, seconds: float, enough: Callable[[], bool]) -> list[Outcome]:
        """Return which jobs have ended, once that is enough or the time is over."""
        until = time.monotonic() + seconds
        while True:
            for running in list(self._running):
                found = self._backend.ended(running.handle)
                if found is not None:
                    self._running.remove(running)
                    self._ended.append(Outcome(running.job, *found))
            left = until - time.monotonic()
            if enough() or left <= 0:
                ended, self._ended = self._ended, []
                return ended
            time.sleep(min(self._backend.pause, left))


def make_executor(
    kind: str,
    jobs: int | None,
    threads: int,
    options: Mapping[str, Any],
    main: Main,
    processes: int = 1,
) -> Executor:
    """Return an executor.

    Args:
        kind: ``local``, ``ray`` or ``slurm``.
        jobs: jobs at once; default: what this machine or cluster has room for.
        threads: CPUs of each process of a job.
        options: local: ``devices`` (GPUs of this machine; default: those that PyTorch sees),
            ``gpus`` (of a job: 1, or 0.5 for half of one, 0 for none; default: jobs share what
            there is); ray: ``address``, ``gpus``; slurm: ``slurm``, parameters of sbatch,
            and ``cells``, how many share a Slurm job.
        main: what a local job's process calls with the words of its command, for an exit code.
            Elsewhere a command is a program and its arguments.
        processes: of a job, which train together, each on a GPU of its own.

    Raises:
        ConfigError: for an unknown kind or option, a value that is not allowed, a library that is
            missing.
    """
    check_choice("executor.kind", kind, _OPTIONS)
    check_known(f"executor {kind}", options, _OPTIONS[kind])
    if kind == "local":
        backend, room = _local(threads, options, main, processes)
    else:
        module = importlib.import_module(f"rlplast.study.{kind}_executor")
        backend, room = module.make(threads, options, processes if kind == "ray" else jobs)
    return Executor(backend, jobs or room, processes)


def room_for(threads: int, gpus: float, cores: float, devices: float, processes: int = 1) -> int:
    """Return how many jobs fit on a machine; none uses parts of two GPUs.

    Examples:
        >>> room_for(threads=1, gpus=0.3, cores=8, devices=2)
        6
        >>> room_for(threads=1, gpus=1, cores=64, devices=8, processes=4)
        2
    """
    room = int(cores // (threads * processes))
    return min(room, int(devices) * int(1 / gpus) // processes) if gpus else room


def gpus_of(options: Mapping[str, Any], processes: int = 1) -> float:
    """Return how much of a GPU each process of a job uses.

    Raises:
        ConfigError: if it is not 0, or 0.01 to 1; or a part of one for one of several processes.
    """
    gpus = options.get("gpus", 0)
    if type(gpus) not in (int, float) or not (gpus == 0 or 0.01 <= gpus <= 1):
        raise ConfigError(
            f"executor: gpus is {shortened(gpus)}: allowed is 0, or 0.01 to 1 for each job"
        )
    if processes > 1 and gpus not in (0, 1):
        raise ConfigError(
            f"executor: gpus is {shortened(gpus)} with processes = {processes}: allowed is 0 or 1 "
            "for each process"
        )
    return gpus


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _local(
    threads: int, options: Mapping[str, Any], main: Main, processes: int
) -> "tuple[Backend, int]":
    """Return a backend for this machine, and how many jobs it has room for; see `make_executor`."""
    gpus, none = gpus_of(options, processes), options.get("gpus") == 0
    seen = 0 if none else torch.cuda.device_count()  # asks NVML: a context would hold memory
    devices = options.get("devices", seen)
    least = 1 if gpus else 0
    if type(devices) is not int or not least <= devices <= 1000:
        raise ConfigError(
            f"executor local: devices is {shortened(devices)}: allowed is how many GPUs this "
            f"machine has, {least} to 1000 where gpus is {gpus}; default: those that PyTorch sees, "
            f"{seen}; to plan for another machine, say what that one has"
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


class LocalBackend(Backend):
    """Processes of this machine, which end with this one.

    Args:
        main: what a job's process calls.
        threads: CPUs of a job.
        gpus: names that CUDA_VISIBLE_DEVICES may have; each process of a job gets one, of those
            with the fewest jobs. Without any, jobs see what this process sees.
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
        with _environment_of_server(self._threads), child.signals_blocked():
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


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start a process that does not import this one's main file.

    A script that runs a study would run it there again.
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
