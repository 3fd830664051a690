"""What runs inside a Slurm job: one cell, or a pack of several side by side.

- `PackedJob`: a cell's job, and its files.
- `Attempt`: starts the commands, sees them through, writes how each ended.
- `read_outcome`: how a job ended, as it wrote itself.
- `SIGNALLED`: exit codes that say that a command was only interrupted.

A cell's folder has the file ``stop``, which asks its command to save and end. Of a cell in a pack
it also has the file ``pack``: the path of the folder of the only pack that may run it. The one who
submits writes it, so that a pack that Slurm queues again leaves alone what another job has taken
over.
"""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlplast.study import child
from rlplast.study.child import Job
from rlplast.training.run_folder import write_json

__all__ = ["SIGNALLED", "Attempt", "PackedJob", "read_outcome"]

SIGNALLED = (130, 143)  # exit codes: saved after SIGTERM; ended by it


@dataclass(frozen=True)
class PackedJob:
    """A cell's job, and its files.

    Attributes:
        job: what to run.
        folder: of the cell, for files of Slurm jobs.
    """

    job: Job
    folder: Path

    @property
    def stop(self) -> Path:
        """The file that asks the command to save and end."""
        return self.folder / "stop"

    @property
    def pack(self) -> Path:
        """The file that says the folder of the pack that may run it."""
        return self.folder / "pack"

    def in_pack(self) -> Path | None:
        """Return the folder of the pack that may run it; None if it is to be alone."""
        try:
            return Path(self.pack.read_text().strip())
        except FileNotFoundError:
            return None

    def result(self, number: str, pack: Path | None) -> Path:
        """Return where the Slurm job of that number, alone or of a pack, writes how it ended."""
        if pack:
            return pack / f"{self.folder.name}.json"
        return self.folder / f"{number}_0_result.json"


@dataclass
class _Running:
    """A command that runs: its process, its GPU, and when it is killed if it was asked to end."""

    process: subprocess.Popen[bytes]
    gpu: str | None
    until: float | None = None


@dataclass
class Attempt:
    """The function of a Slurm job: starts commands, sees them through, writes how each ended.

    Attributes:
        cells: what to run, side by side.
        pack: folder of a pack of several; each process of a cell gets one of the
            job's GPUs.
    """

    cells: Sequence[PackedJob]
    pack: Path | None = None
    _running: dict[PackedJob, _Running] = field(default_factory=dict)

    def __call__(self) -> None:
        """Run all commands to their ends, and write exit codes and reasons."""
        import submitit
        from submitit.core.utils import UncompletedJobError

        number = submitit.JobEnvironment().job_id
        left = {cell: cell.result(number, self.pack) for cell in self.cells if self._is_due(cell)}
        for result in left.values():
            result.unlink(missing_ok=True)  # of an earlier start, after which it was queued again
        try:
            while self._look(left):
                time.sleep(0.2)
        except UncompletedJobError:  # from its handler of Slurm's warning
            reason = "its time limit came too often: raise slurm.time"
            for result in left.values():
                write_json(result, {"exit": child.KILLED, "reason": reason})

    def _is_due(self, cell: PackedJob) -> bool:
        """Whether a cell is to be run: not if it ended in an earlier start of its pack."""
        if self.pack is None:
            return True
        ended = read_outcome(cell.result("", self.pack))
        return cell.in_pack() == self.pack and (ended is None or ended[0] in SIGNALLED)

    def _look(self, left: dict[PackedJob, Path]) -> bool:
        """Start, stop and remove commands; whether any is left.

        Slurm's warning waits meanwhile: what it interrupts is a sleep.
        """
        with child.signals_blocked():
            for cell, result in list(left.items()):
                ended = self._see(cell)
                if ended is not None:
                    code, reason = ended
                    write_json(result, {"exit": code, "reason": reason})
                    self._running.pop(cell, None)
                    del left[cell]
        return bool(left)

    def _see(self, cell: PackedJob) -> tuple[int, str] | None:
        """Start or stop a command; exit code and reason of one that has ended."""
        running, stopping = self._running.get(cell), cell.stop.exists()
        if running is None:
            return (child.STOPPED, "stopped before it began") if stopping else self._start(cell)
        code = running.process.poll()
        if code is not None:
            return child.exit_of(code)
        if stopping and running.until is None:  # without waiting: the others run on
            running.process.terminate()
            running.until = time.monotonic() + child.GRACE
        elif stopping and time.monotonic() > (running.until or 0):
            child.kill(running.process.pid)
        return None

    def _start(self, cell: PackedJob) -> tuple[int, str] | None:
        held = [running.gpu for running in self._running.values()]
        count = cell.job.processes
        gpu = child.least_loaded(child.visible_gpus(), held, count) if self.pack else None
        try:
            self._running[cell] = _Running(child.start(cell.job, gpu), gpu)
        except OSError as error:
            return child.cannot_start(error)
        return None

    def checkpoint(self) -> Any:
        """Have all commands save and end, and return what runs when Slurm starts the job again.

        submitit calls this between two lines of the above, when Slurm has warned the job.
        """
        import submitit

        child.end(*(running.process for running in self._running.values()))
        return submitit.helpers.DelayedSubmission(Attempt(self.cells, self.pack))


def read_outcome(result: Path) -> tuple[int, str] | None:
    """Return exit code and reason that a job has written; None if there is no such file."""
    try:
        found = json.loads(result.read_bytes())
        return int(found["exit"]), str(found["reason"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        return child.KILLED, f"{result} is damaged: {error}"
