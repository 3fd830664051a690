"""One job as a child process, on whichever machine this runs.

- `Job`: a command, with what it needs.
- `start`: start it, appending to a log that says which attempt this is.
- `run`: start it and see it through.
- `end`: ask it, or several, to save and end, and kill what does not.
- `exit_of`: exit code and reason.
- `visible_gpus`, `least_loaded`: which GPUs there are, and which a job gets.
- `die_with_parent`: what the child calls first.

Only the standard library is used: Ray and Slurm carry these functions to their nodes as they are.
"""

import contextlib
import ctypes
import datetime
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "Job",
    "die_with_parent",
    "end",
    "exit_of",
    "least_loaded",
    "run",
    "start",
    "visible_gpus",
]

CANNOT_START, STOPPED, KILLED = 127, 130, 137  # exit codes, as a shell has them
GRACE = 120.0  # seconds that a job may save for when it is stopped: a replay has some GB
PARENT = "RLPLAST_PARENT"  # environment variable: process id of who started the command
_GPUS = "CUDA_VISIBLE_DEVICES"
_HEAD = b"=== attempt "
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Job:
    """A command to run.

    Attributes:
        name: for people; a cell's.
        command: program and arguments; run again, it resumes.
        log: file that output and errors are appended to.
        threads: CPUs that each of its processes may use.
        processes: how many train together, each on a GPU of its own.
        folder: the current one of the command, which the log's path is relative to.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    threads: int = 1
    processes: int = 1
    folder: str = field(default_factory=os.getcwd)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when the process that started it is gone.

    For commands started with `start`; elsewhere, and on other systems, nothing happens. The
    "parent" of Linux is the thread that started the child: that one must live as long.
    """
    parent = os.environ.pop(PARENT, None)  # not for this process's own children
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != int(parent):  # it died before the line above
        os.kill(os.getpid(), number)


def start(job: Job, gpu: str | None = None) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own, which the terminal's Ctrl-C does not reach.

    Args:
        job: its log gets a line with attempt, time and machine, then the output.
        gpu: as of `environment`.

    Raises:
        OSError: if the program or the log cannot be opened.
    """
    begin_log(job)
    with open(Path(job.folder, job.log), "ab") as out, signals_blocked():
        return subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**environment(job, gpu), PARENT: str(os.getpid())},
            cwd=job.folder,
            start_new_session=True,
        )


def environment(job: Job, gpu: str | None = None) -> dict[str, str]:
    """Return the environment variables of a job's process.

    Args:
        job: says how many threads.
        gpu: the only one it may see, or several with commas; empty: it sees none; None: it sees
            those that this one does.
    """
    return {
        **os.environ,
        **threads(job.threads),
        **({} if gpu is None else {_GPUS: gpu}),
        "PYTHONUNBUFFERED": "1",  # the last words of a process that is killed
    }


def visible_gpus() -> list[str]:
    """Return the names (numbers, UUIDs) of GPUs that this process may see, if they are named."""
    names = os.environ.get(_GPUS, "").split(",")
    return [name.strip() for name in names if name.strip()]


def least_loaded(gpus: Sequence[str], held: Iterable[str | None], count: int = 1) -> str | None:
    """Return the GPUs that fewest jobs hold, the first of several; None if there are none.

    Args:
        gpus: all there are.
        held: those of each job, with commas.
        count: how many a job needs.

    Examples:
        >>> least_loaded(["4", "7"], ["4"]), least_loaded([], [])
        ('7', None)
        >>> least_loaded(["0", "1", "2", "3"], ["0,1"], count=2)
        '2,3'
    """
    load = Counter(name for names in held if names for name in names.split(","))
    found = sorted(gpus, key=load.__getitem__)[:count]
    return ",".join(found) if found else None


def threads(number: int) -> dict[str, str]:
    """Return the environment variables that set how many threads libraries use."""
    return {"OMP_NUM_THREADS": str(number), "MKL_NUM_THREADS": str(number)}


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Start processes that ignore SIGUSR2 and SIGHUP.

    Slurm warns all processes of a job with the first, and a terminal that closes sends the second.
    Either would end a command: they are for the process that started it. A blocked signal is
    inherited as blocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_log(job: Job) -> None:
    """Write the line that says which attempt this is.

    Raises:
        OSError: if the log cannot be opened.
    """
    log = Path(job.folder, job.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        out.write(_header(job, log.read_bytes()))


def _header(job: Job, before: bytes) -> bytes:
    """Return the line above an attempt's output; attempts are counted by these lines."""
    attempt = 1 + sum(line.startswith(_HEAD) for line in before.splitlines())
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    line = f"{attempt}, {now}, {platform.node()}: {shlex.join(job.command)}\n"
    return (b"" if before.endswith(b"\n") or not before else b"\n") + _HEAD + line.encode()


def run(job: Job) -> tuple[int, str]:
    """Start a job and wait; a KeyboardInterrupt ends it. Returns as `exit_of`."""
    try:
        child = start(job)
    except OSError as error:
        return cannot_start(error)
    try:
        while child.poll() is None:  # a wait() would not notice an interrupt from a thread
            time.sleep(0.1)
    except KeyboardInterrupt:
        end(child)
    return exit_of(child.wait())


def cannot_start(error: Exception) -> tuple[int, str]:
    """Return exit code and reason of a job that could not be started."""
    return CANNOT_START, f"cannot be started: {error}"


def end(*children: subprocess.Popen[bytes]) -> None:
    """Ask commands to save and end (SIGTERM), and kill their sessions after the grace time."""
    for child in children:
        child.terminate()
    until = time.monotonic() + GRACE
    for child in children:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill(child.pid)
            child.wait()


def kill(pid: int) -> None:
    """Kill a command and what it started.

    Its end has not been waited for yet: until then no other process gets its id.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def exit_of(returncode: int) -> tuple[int, str]:
    """Return the exit code as a shell would, and why if a signal did it.

    Examples:
        >>> exit_of(-9), exit_of(2)
        ((137, 'killed by SIGKILL'), (2, ''))
    """
    if returncode >= 0:
        return returncode, ""
    names = {s.value: s.name for s in signal.Signals}
    return 128 - returncode, f"killed by {names.get(-returncode, f'signal {-returncode}')}"
