"""Where the jobs of a study run: on this machine, on a Ray cluster, through Slurm.

- `Job`, `Outcome`: a command, and how it ended.
- `Executor`: submit jobs, wait for outcomes, stop.
- `make_executor`: one of a kind, from its options.
- `Backend`: what a kind provides.

A job is an idempotent command that carries on where it stopped when it is started again. Every
job that was submitted comes back as an outcome with an exit code, whatever happened to it.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlplast.core.errors import ConfigError, RlplastError, did_you_mean
from rlplast.study import child

__all__ = ["Backend", "Executor", "Job", "Outcome", "make_executor"]

_LEAST, _MOST = 1e-3, 1e6  # of an option that is a number
GRACE = 120.0  # seconds: a checkpoint with a replay of some GB


@dataclass(frozen=True)
class Job:
    """A command to run.

    Args:
        name: for people; a cell's.
        command: program and arguments; run again, it resumes.
        log: file that output and errors are appended to.
        threads: CPUs it may use.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    threads: int = 1


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        job: the job.
        exit: the command's exit code; 128 + n if signal n killed it.
        reason: in words, where the exit code does not say it.
    """

    job: Job
    exit: int
    reason: str = ""


class Backend(Protocol):
    """What a kind of executor provides; a handle is whatever its `start` returns.

    Args:
        pause: seconds between two looks at the jobs.
    """

    pause: float

    def start(self, job: Job) -> Any:
        """Start a job; OSError or RlplastError if that fails."""
        ...

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""
        ...

    def ask(self, handle: Any) -> None:
        """Ask it to save and end; called once."""
        ...

    def kill(self, handle: Any) -> None:
        """End it."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Executor:
    """Runs jobs through a backend.

    Args:
        backend: starts jobs and tells how they ended.
        slots: how many jobs may run at once; keeping to it is the caller's affair.
        grace: seconds that `stop` leaves jobs to save in.
    """

    def __init__(self, backend: Backend, slots: int, grace: float = GRACE) -> None:
        self.slots = slots
        self._backend = backend
        self._grace = grace
        self._running: list[tuple[Any, Job]] = []
        self._ended: list[Outcome] = []
        self._asked: list[Any] = []
        self._deadline: float | None = None  # of a stop that has begun

    def submit(self, job: Job) -> None:
        """Start a job; one that cannot be started has ended, with exit code 127."""
        try:
            self._running.append((self._backend.start(job), job))
        except (OSError, RlplastError) as error:
            reason = f"cannot be started: {error}"
            self._ended.append(Outcome(job, child.CANNOT_START, reason))

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of jobs that ended, as soon as there is one, or [] after a time."""
        until = time.monotonic() + seconds
        while True:
            self._look()
            left = until - time.monotonic()
            if self._ended or left <= 0:
                return self._take()
            time.sleep(min(self._backend.pause, left))

    def stop(self) -> list[Outcome]:
        """Have all running jobs save and end, wait for them, and return their outcomes.

        Jobs that take longer than the grace time are killed. When Ctrl-C interrupts it, the next
        call goes on where it was: no job is asked twice, and the time is not extended.
        """
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
        for handle, _ in self._running:
            if not any(handle is other for other in self._asked):
                self._asked.append(handle)
                self._backend.ask(handle)
        self._look_until(self._deadline)
        for handle, _ in self._running:
            self._backend.kill(handle)
        self._look_until(time.monotonic() + max(10.0, 10 * self._backend.pause))
        for _, job in self._running:
            self._ended.append(Outcome(job, 137, "killed, but its end was not seen"))
        self._running, self._asked, self._deadline = [], [], None
        return self._take()

    def close(self) -> None:
        """Let go of the cluster. Jobs that still run are stopped first."""
        if self._running:
            self.stop()
        self._backend.close()

    def _look(self) -> None:
        for entry in list(self._running):
            found = self._backend.ended(entry[0])
            if found is not None:
                self._running.remove(entry)
                self._ended.append(Outcome(entry[1], *found))

    def _look_until(self, deadline: float) -> None:
        self._look()
        while self._running and time.monotonic() < deadline:
            time.sleep(self._backend.pause)
            self._look()

    def _take(self) -> list[Outcome]:
        taken, self._ended = self._ended, []
        return taken


@dataclass(eq=False)
class _Process:
    """A running child and the GPUs it holds, as (number, share)."""

    child: "subprocess.Popen[bytes]"
    held: list[tuple[int, float]] = field(default_factory=list)


class LocalBackend:
    """Processes of this machine, which end with this one.

    Args:
        gpus: GPUs of each job, 0.5 for half of one.
        devices: GPUs of this machine; jobs get those with the least on them.
    """

    pause = 0.05

    def __init__(self, gpus: float = 0.0, devices: int = 0) -> None:
        self._gpus = gpus
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._names = visible.split(",") if visible else [str(i) for i in range(devices)]
        self._load = [0.0] * min(devices, len(self._names))

    def start(self, job: Job) -> _Process:
        """Start a process."""
        held = self._least_loaded(self._gpus)
        more = {"CUDA_VISIBLE_DEVICES": ",".join(self._names[i] for i, _ in held)} if held else {}
        process = _Process(child.start(job.command, job.log, job.threads, more), held)
        for device, share in held:
            self._load[device] += share
        return process

    def ended(self, handle: _Process) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""
        returncode = handle.child.poll()
        if returncode is None:
            return None
        while handle.held:
            device, share = handle.held.pop()
            self._load[device] -= share
        return child.exit_of(returncode)

    def ask(self, handle: _Process) -> None:
        """Send SIGTERM."""
        handle.child.terminate()

    def kill(self, handle: _Process) -> None:
        """Send SIGKILL, also to what it started."""
        child.kill(handle.child)

    def close(self) -> None:
        """Nothing is left to close."""

    def _least_loaded(self, gpus: float) -> list[tuple[int, float]]:
        """Return which devices a job gets, and how much of each."""
        count = min(-int(-gpus // 1), len(self._load))  # rounded up
        order = sorted(range(len(self._load)), key=self._load.__getitem__)
        return [(device, gpus / count) for device in order[:count]]


def make_executor(
    kind: str, jobs: int | None, threads: int, options: Mapping[str, Any]
) -> Executor:
    """Return an executor.

    Args:
        kind: ``local``, ``ray`` or ``slurm``.
        jobs: jobs at once; default: what this machine or cluster has room for.
        threads: CPUs of a job.
        options: of the kind. All: ``grace`` (seconds a job may take to save when stopped).
            local: ``gpus`` (of a job), ``devices`` (GPUs of this machine). ray: see
            `rlplast.study.ray_executor.make`; slurm: see `rlplast.study.slurm_executor.make`.

    Raises:
        ConfigError: for an unknown kind or option, a value that is not allowed, a library that is
            missing.
    """
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"executor: there is no {kind!r}: {did_you_mean(str(kind), _KINDS)}")
    for name, value in (("jobs", jobs), ("threads", threads)):
        if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
            raise ConfigError(f"executor {kind}: {name} is {value}, not a whole number from 1")
    make, allowed = _KINDS[kind]
    for key in options:
        if key not in (*allowed, "grace"):
            hint = did_you_mean(str(key), (*allowed, "grace"))
            raise ConfigError(f"executor {kind} has no option {key!r}: {hint}")
    return make(jobs, threads, {"grace": number(options, "grace", GRACE), **options})


def number(options: Mapping[str, Any], key: str, default: float, whole: bool = False) -> float:
    """Return an option that is a number, 0 or in [0.001, 10^6].

    Raises:
        ConfigError: if it is not.
    """
    value = options.get(key, default)
    fits = isinstance(value, int) or (isinstance(value, float) and not whole)
    if isinstance(value, bool) or not fits or not (value == 0 or _LEAST <= value <= _MOST):
        allowed = f"a whole number to {_MOST:g}" if whole else f"0, or {_LEAST:g} to {_MOST:g}"
        raise ConfigError(f"executor: {key} is {value!r}: allowed is {allowed}")
    return value


def _local(jobs: int | None, threads: int, options: Mapping[str, Any]) -> Executor:
    gpus = number(options, "gpus", 0.0)
    devices = int(number(options, "devices", 0, whole=True))
    if gpus > devices:
        raise ConfigError(
            f"executor local: gpus is {gpus} for each job, but devices is {devices}: set devices "
            "to the number of GPUs of this machine"
        )
    room = cpus() // threads
    if gpus:
        room = min(room, places(devices, gpus))
    return Executor(LocalBackend(gpus, devices), jobs or max(1, room), options["grace"])


def places(devices: float, gpus: float) -> int:
    """Return how many jobs of so many GPUs fit: parts of one on one, whole ones side by side.

    Examples:
        >>> places(2, 0.3), places(4, 2)
        (6, 2)
    """
    return int(devices) * int(1 / gpus) if gpus < 1 else int(devices / gpus)


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ray(jobs: int | None, threads: int, options: Mapping[str, Any]) -> Executor:
    from rlplast.study import ray_executor

    return ray_executor.make(jobs, threads, options)


def _slurm(jobs: int | None, threads: int, options: Mapping[str, Any]) -> Executor:
    from rlplast.study import slurm_executor

    return slurm_executor.make(jobs, threads, options)


_KINDS = {
    "local": (_local, ("gpus", "devices")),
    "ray": (_ray, ("address", "gpus", "retries_on_node_death")),
    "slurm": (_slurm, ("cluster", "requeues", "slurm")),
}
