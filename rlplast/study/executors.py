"""Where the jobs of a study run: on this machine, on a Ray cluster, through Slurm.

- `Outcome`: how a job ended.
- `Executor`: submit jobs, wait for outcomes, stop.
- `make_executor`: one of a kind, from its options.
- `Backend`: what a kind provides.

A job is an idempotent command that carries on where it stopped when it is started again. Every
job that was submitted comes back as an outcome with an exit code, whatever happened to it.
"""

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlplast.core.errors import ConfigError, RlplastError, check_choice, check_known
from rlplast.study import child
from rlplast.study.child import Job

__all__ = ["Backend", "Executor", "Job", "Main", "Outcome", "make_executor"]

Main = Callable[[Sequence[str]], int]

_OPTIONS = {"local": ("devices", "gpus"), "ray": ("address", "gpus"), "slurm": ("cells", "slurm")}
_PATIENCE = child.GRACE + 60.0  # seconds: a cluster takes a while to say that a job has ended
_LAST = 20.0  # seconds until the end of a job that was killed is seen


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    exit: int  # code of the command; 128 + n if signal n killed it
    reason: str = ""  # in words, where the exit code does not say it


class Backend(Protocol):
    """What a kind of executor provides; a handle is whatever its `start` returns."""

    pause: float  # seconds between two looks at the jobs

    def start(self, job: Job) -> Any:
        """Start a job; OSError or RlplastError if that fails."""

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""

    def end(self, handle: Any, force: bool) -> None:
        """Ask it, once, to save and end; with force, kill it."""

    def news(self) -> str:
        """Return what people should know of the cluster and were not told yet, or nothing."""
        ...

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
        slots: how many jobs may run at once; keeping to it is the caller's affair.
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
        """Return what people should know of the cluster and were not told yet, or nothing."""
        return self._backend.news()

    def end(self, job: Job) -> None:
        """Ask one running job to save and end, once; `wait` returns its outcome."""
        for running in self._running:
            if running.job is job and not running.asked:
                running.asked = True
                self._backend.end(running.handle, force=False)

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
    module = importlib.import_module(f"rlplast.study.{kind}_executor")
    more = {"local": (main, processes), "ray": (processes,), "slurm": (jobs,)}[kind]
    backend, room = module.make(threads, options, *more)
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
        raise ConfigError(f"executor: gpus is {gpus!r}: allowed is 0, or 0.01 to 1 for each job")
    if processes > 1 and gpus not in (0, 1):
        raise ConfigError(
            f"executor: gpus is {gpus!r} with processes = {processes}: allowed is 0 or 1 for each "
            "process"
        )
    return gpus


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
