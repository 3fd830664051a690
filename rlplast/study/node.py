"""How workers are started on whichever machine this runs.

Only the standard library is used: Ray and Slurm carry this module to their nodes as it is.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["GRACE", "SlurmJob", "begin", "end", "run"]

GRACE = 150.0  # seconds: those that a cell has (`cell.GRACE`), and some to spare


def begin(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start workers in a session of their own, which the terminal's Ctrl-C does not reach.

    Args:
        command: program and arguments of `rlplast.study.work.main`.
        log: file that their messages are appended to; cells have their own.
        environment: variables beside those of this process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Slurm sends the first to all processes of a job, and a terminal that closes the second. What
    # is blocked stays so in children: these signals are for who started the workers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGHUP})
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end(process: "subprocess.Popen[bytes]") -> int:
    """Ask workers to save and end; return their exit code. They are killed after `GRACE`."""
    process.terminate()
    try:
        return process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
    """Start workers and return their exit code; a KeyboardInterrupt ends them."""
    process = begin(command, log, environment)
    try:
        while process.poll() is None:  # a wait() would not notice an interrupt from a thread
            time.sleep(0.1)
    except KeyboardInterrupt:
        end(process)
    return process.wait()


class SlurmJob:
    """The function of a Slurm job, as submitit calls it; arguments as of `begin`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.arguments = command, log, environment
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int) -> int:
        """Start workers, and return their exit code; `number` is the job's in its array.

        SIGTERM says that the job is cancelled, preempted or queued again; which, only Slurm knows.
        Cells save, and Slurm ends the job: one that ended by itself would not be queued again.
        """
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        self.process = begin(*self.arguments)
        while self.process.poll() is None and not asked:
            time.sleep(0.2)
        if asked:
            end(self.process)
        while asked:
            time.sleep(1)
        return self.process.returncode

    def checkpoint(self, number: int) -> Any:
        """Have cells save once Slurm has warned, and return what runs when the job starts again."""
        import submitit

        if self.process is not None:
            end(self.process)
        return submitit.helpers.DelayedSubmission(SlurmJob(*self.arguments), number)
