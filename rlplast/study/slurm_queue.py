"""What Slurm says of this user's jobs.

- `Queue`: asks `squeue`, no oftener than needed.
- `Listed`: a job that `squeue` lists.
- `OVER`: the states of a job that has ended and is not queued again.
- `last_state`: what `sacct` says of a job that has left the queue.

`squeue` lists every job that waits or runs, and for some minutes those that have ended (Slurm's
MinJobAge). Later only `sacct` knows them, where a cluster keeps accounts.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OVER", "Listed", "Queue", "last_state"]

# All others are of jobs that wait, run, stand still, end right now, or are queued again.
OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "RECONFIG_FAIL REVOKED TIMEOUT".split()
)
_ANSWER = 60.0  # seconds that Slurm has for an answer


@dataclass(frozen=True)
class Listed:
    """A job that `squeue` lists.

    Attributes:
        state: such as PENDING, RUNNING, COMPLETED.
        script: path of what was submitted.
    """

    state: str
    script: str

    def is_of(self, folder: Path) -> bool:
        """Whether the script lies in a folder; Slurm uses the ids of jobs again."""
        return self.script.startswith(f"{folder}/")


class Queue:
    """Asks `squeue` for all jobs of this user at once.

    Attributes:
        silence: why the last question was not answered; empty if it was.
        asked: when that was, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.silence = ""
        self.asked = float("-inf")
        self._jobs: dict[str, Listed] = {}

    def jobs(self, age: float) -> dict[str, Listed] | None:
        """Return the jobs by id; None while Slurm does not answer.

        Args:
            age: seconds for which an earlier answer holds, or that there was none.
        """
        if time.monotonic() - self.asked > age:
            user = f"--user={os.getuid()}"
            words = ("--noheader", "--all", user, "--states=all", "--format=%A|%T|%o")
            answer, self.silence = _ask("squeue", *words)
            self.asked = time.monotonic()
            rows = (line.split("|", 2) for line in answer.splitlines() if line.count("|") > 1)
            self._jobs = {job: Listed(state, script) for job, state, script in rows}
        return None if self.silence else self._jobs


def last_state(job: str) -> str:
    """Return the state that a job ended in, by `sacct`; empty if it does not say."""
    words = ("--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}")
    states = _ask("sacct", *words)[0].split()  # "CANCELLED by 1000" is one of them
    return states[0] if states and states[0] in OVER else ""


def _ask(*command: str) -> tuple[str, str]:
    """Return what a command of Slurm's says, and why it failed; empty if it did not."""
    defaults = ("SQUEUE_", "SACCT_")  # a user's own, for what people read
    environment = {k: v for k, v in os.environ.items() if not k.startswith(defaults)}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout, ""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return "", f"{command[0]}: {lines[-1]}"
