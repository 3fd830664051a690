"""One command as a child process, on whichever machine this runs.

- `start`: start it, appending to a log that says which attempt this is.
- `run`: start it and see it through.
- `end`: ask it to save and end, and kill it if it does not.
- `exit_of`: exit code and reason.
- `die_with_parent`: what the child calls first.

Only the standard library is used: Ray and Slurm carry these functions to their nodes as they are.
"""

import ctypes
import datetime
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["die_with_parent", "end", "exit_of", "run", "start"]

PARENT = "RLPLAST_PARENT"  # environment variable: process id of who started the command
CANNOT_START = 127
_HEAD = b"=== attempt "
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have Linux send this process SIGTERM when the process that started it is gone.

    For commands started with `start`; elsewhere, and on other systems, nothing happens. The
    "parent" of Linux is the thread that started the child: that one must live as long.
    """
    parent = os.environ.pop(PARENT, None)  # not for this process's own children
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the line above
        os.kill(os.getpid(), signal.SIGTERM)


def start(
    command: Sequence[str],
    log: Path,
    threads: int,
    more: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, so that the terminal's Ctrl-C passes it by.

    Args:
        command: the program and its arguments.
        log: file that its output is appended to, below a line with attempt, time and machine.
        threads: for OpenMP and MKL.
        more: further environment variables.
        cwd: folder to run it in; default: this process's.

    Raises:
        OSError: if the program or the log cannot be opened.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",  # the last words of a process that is killed
        PARENT: str(os.getpid()),
        **(more or {}),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        out.write(_header(command, log))
        out.flush()
        # Slurm warns all processes of a job with SIGUSR2, which would end the command: it is
        # for the process that started it. A blocked signal is inherited as blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _header(command: Sequence[str], log: Path) -> bytes:
    """Return the line above an attempt's output; attempts are counted by these lines."""
    text = log.read_bytes()
    attempt = 1 + sum(line.startswith(_HEAD) for line in text.splitlines())
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    line = f"{attempt}, {now}, {platform.node()}: {shlex.join(command)}\n"
    return (b"" if text.endswith(b"\n") or not text else b"\n") + _HEAD + line.encode()


def run(command: Sequence[str], log: str, threads: int, cwd: str, grace: float) -> tuple[int, str]:
    """Start a command and wait for its end; a KeyboardInterrupt ends it.

    Args:
        command: as of `start`, like log, threads and cwd.
        log: a path.
        threads: of the command.
        cwd: a folder.
        grace: seconds to save in after the interrupt.

    Returns:
        Exit code and reason, as of `exit_of`; 127 if it could not be started.
    """
    try:
        child = start(command, Path(log), threads, cwd=cwd)
    except OSError as error:
        return CANNOT_START, f"cannot be started: {error}"
    try:
        while child.poll() is None:  # a wait() would not notice an interrupt from a thread
            time.sleep(0.1)
    except KeyboardInterrupt:
        end(child, grace)
    return exit_of(child.wait())


def end(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """Ask a command to save and end (SIGTERM), and kill its session after `grace` seconds."""
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        kill(child)
        child.wait()


def kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill a command and what it started."""
    if child.poll() is None:  # until then its id is not given away
        os.killpg(child.pid, signal.SIGKILL)


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
