"""Jobs of a Slurm cluster, through submitit.

- `make`: a backend from its options.
- `SlurmBackend`: submits jobs, submits them again, and reads how they ended.

Login node and compute nodes must see the study's folder and this Python environment under the same
paths. Beside a job's log lies a folder ``slurm/<name of the log>`` with submitit's files and how
the job ended, as JSON: what submitit pickles as a job's result is not opened. A job whose time
limit nears or which is preempted saves and is queued again.

Several cells may share a Slurm job. Such a pack has a folder of its own in ``slurm_packs``, for
submitit's files and the JSON of each cell (`slurm_attempt`). Here each cell is looked after by
itself: what a pack leaves undone goes into new packs.

Whether a job is over, `squeue` says. What the job itself wrote counts only then: Slurm may queue a
job again after it has written how it ended. Jobs outlive a study that is killed. Started again, it
finds those that still wait or run by the path of their script. A cell of a pack that ends while
others run is the exception: it is not run again when its pack is, so its word counts at once.
"""

import io
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.optional import import_optional
from rlplast.study import child, slurm_attempt
from rlplast.study.child import Job
from rlplast.study.executors import Backend
from rlplast.study.slurm_attempt import SIGNALLED, Attempt, PackedJob, read_outcome
from rlplast.study.slurm_options import check_cells, check_parameters
from rlplast.study.slurm_queue import OVER, Listed, Queue, last_state
from rlplast.training.run_folder import numbered, write_text

__all__ = ["SlurmBackend", "make"]

_JOBS = 32  # at once, by default
_AGAIN = 10  # times that a job is queued again: by submitit at a time limit, and by this
_FRESH = 15.0  # seconds for which Slurm's answer about all jobs holds
_SOON = 2.0  # the same, where the end of a job is near
_SLOW = 15.0  # seconds until a network file system surely shows a file that was written
_BY_SLURM = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT")

_UNBEGUN = (child.STOPPED, "stopped before it began")


def make(threads: int, options: Mapping[str, Any], jobs: int | None) -> "tuple[SlurmBackend, int]":
    """Return a backend that submits to Slurm, and how many cells to queue at once.

    Args:
        threads: CPUs of a job; each job says its own.
        options: ``slurm``: parameters of sbatch as submitit names them (partition, account, qos,
            mem, gpus_per_node, constraint, …), of which ``time``, whole minutes, must be there;
            ``cells``: how many share a Slurm job.
        jobs: cells at once; None for the default.

    Raises:
        ConfigError: if submitit or Slurm is missing, Slurm does not answer, or a parameter is not
            allowed.
    """
    submitit = import_optional("submitit", "slurm")
    cells = check_cells(options.get("cells", 1))
    names = submitit.SlurmExecutor._valid_parameters()
    parameters = check_parameters(options.get("slurm", {}), names)
    if submitit.SlurmExecutor.affinity() < 0:
        raise ConfigError(
            "executor slurm: there is no srun on this machine: run the study on a login node of "
            "the cluster, or choose the executor local or ray"
        )
    queue = Queue()
    if queue.jobs(_SOON) is None:
        raise ConfigError(
            f"executor slurm: Slurm does not say which jobs there are ({queue.silence}): try "
            "again once `squeue` answers, or choose the executor local or ray"
        )
    room = jobs or _JOBS * cells
    return SlurmBackend(submitit, parameters, queue, cells, -(-room // cells)), room


@dataclass(eq=False)
class _Submitted:
    """A cell's job, and how often it may be submitted again."""

    cell: PackedJob
    again: int
    queued: Any = None  # submitit's job; None until it is submitted
    pack: Path | None = None  # folder, of one that shares its Slurm job
    placed: float = 0.0  # when this submitted it, by `time.monotonic`
    missed: float | None = None  # when it was first seen to have ended and left no word
    before: str = "cannot be started: "  # why it is to be submitted, should Slurm refuse it
    refused: tuple[int, str] | None = None  # its outcome, if Slurm did

    def written_outcome(self) -> tuple[int, str] | None:
        """Return exit code and reason that the Slurm job has written, or None."""
        return read_outcome(self.cell.result(self.queued.job_id, self.pack))


class SlurmBackend(Backend):
    """Submits jobs through the module `submitit`, with parameters of sbatch.

    Args:
        submitit: the module.
        parameters: of every Slurm job.
        queue: says which Slurm jobs there are.
        cells: how many share a Slurm job.
        jobs: how many Slurm jobs there may be at once, where cells share them.
    """

    pause = 2.0

    def __init__(
        self, submitit: Any, parameters: Mapping[str, Any], queue: Queue, cells: int, jobs: int
    ) -> None:
        import cloudpickle

        # By value, so that the process that watches a job need not import torch.
        for module in (child, slurm_attempt):
            cloudpickle.register_pickle_by_value(module)
        self._submitit, self._parameters, self._queue = submitit, parameters, queue
        self._cells, self._jobs = cells, jobs
        self._live: list[_Submitted] = []  # those that have not been seen to end
        self._new: list[_Submitted] = []  # to be looked for in the queue
        self._open: list[_Submitted] = []  # not there: to be submitted
        self._silent = False

    def start(self, job: Job) -> _Submitted:
        """Submit a job, or find it in the queue when an earlier study submitted it.

        One that shares a Slurm job is submitted when a pack is full, or at the next look.
        """
        folder = Path(job.folder, job.log.parent, "slurm", job.log.stem).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        handle = _Submitted(PackedJob(job, folder), _AGAIN)
        handle.cell.stop.unlink(missing_ok=True)
        self._live.append(handle)
        self._new.append(handle)
        self._place(self._cells)
        return handle

    def _place(self, least: int) -> None:
        """Find or submit waiting jobs, in packs of so many or more.

        While Slurm does not answer, nothing happens.
        """
        jobs = self._queue.jobs(_SOON)
        if jobs is None:
            return
        new, self._new = self._new, []
        for handle in new:
            if not self._find(handle, jobs):
                self._open.append(handle)
        while len(self._open) >= least and not self._is_full():
            pack, self._open = self._open[: self._cells], self._open[self._cells :]
            try:
                self._submit(pack)
            except (OSError, RlplastError) as error:
                if self._queue.jobs(0) is None:  # it was a failure to reach Slurm
                    self._new += pack
                    return
                for handle in pack:
                    handle.refused = child.CANNOT_START, f"{handle.before}{error}"

    def _is_full(self) -> bool:
        """Whether as many Slurm jobs as may be wait or run: new packs gather until one is over.

        Otherwise each cell that ends in a pack would make room for a job of a single one.
        """
        jobs = {handle.queued.job_id for handle in self._live if handle.queued is not None}
        return self._cells > 1 and len(jobs) >= self._jobs

    def _find(self, handle: _Submitted, jobs: Mapping[str, Listed]) -> bool:
        """Find a cell's job in the queue, unless the cell has ended in a pack that runs on."""
        pack = handle.cell.in_pack()
        ended = read_outcome(handle.cell.result("", pack)) if pack else None
        if ended is not None and ended[0] not in SIGNALLED:
            return False
        folder = pack or handle.cell.folder
        for number, listed in jobs.items():
            if listed.state not in OVER and listed.is_of(folder):
                job = self._submitit.SlurmJob(folder, number)
                if job.paths.submitted_pickle.exists():
                    handle.queued, handle.pack = job, pack
                    return True
                _cancel(number)  # its study was killed before it had written what to run
        return False

    def _submit(self, handles: Sequence[_Submitted]) -> None:
        """Submit one Slurm job for all of them.

        Raises:
            RlplastError: if Slurm refuses it, or cannot be reached.
        """
        cells = [handle.cell for handle in handles]
        pack = self._new_pack(cells)
        folder = pack or cells[0].folder
        name = cells[0].job.name + (f"+{len(cells) - 1}" if pack else "")
        threads = sum(cell.job.threads * cell.job.processes for cell in cells)
        executor = self._submitit.SlurmExecutor(folder, max_num_timeout=_AGAIN)
        try:
            executor.update_parameters(job_name=name, cpus_per_task=threads, **self._parameters)
            with redirect_stderr(io.StringIO()):  # submitit prints what the error says
                queued = executor.submit(Attempt(cells, pack))
        except (RuntimeError, ValueError) as error:
            raise RlplastError(f"Slurm did not take it: {error}") from error
        for handle in handles:
            handle.queued, handle.pack, handle.placed = queued, pack, time.monotonic()

    def _new_pack(self, cells: Sequence[PackedJob]) -> Path | None:
        """Return the folder of a new pack, which from now on alone may run these cells.

        A cell without others gets none: it is a job as if nothing could be packed.
        """
        if len(cells) == 1:
            cells[0].pack.unlink(missing_ok=True)
            return None
        first = cells[0].folder
        pack = numbered(first.parent.parent / "slurm_packs" / f"{first.name}-")
        pack.mkdir(parents=True)
        for cell in cells:
            write_text(cell.pack, f"{pack}\n")
        return pack

    def ended(self, handle: _Submitted) -> tuple[int, str] | None:
        """Return exit code and reason, or None while the job waits, runs, or is queued again."""
        outcome = self._outcome(handle)
        if outcome is not None:
            self._live.remove(handle)
        return outcome

    def _outcome(self, handle: _Submitted) -> tuple[int, str] | None:
        stopping = handle.cell.stop.exists()
        if handle.queued is None:
            return self._unplaced(handle, stopping)
        written = handle.written_outcome()
        if handle.pack and written is not None and (stopping or written[0] not in SIGNALLED):
            return written
        near = stopping or written is not None or handle.missed is not None
        # An answer from before it was submitted does not list it, though it may still run.
        unknown = written is not None and self._queue.asked < handle.placed
        jobs = self._queue.jobs(0 if unknown else _SOON if near else _FRESH)
        if jobs is None:
            return None
        listed, folder = jobs.get(handle.queued.job_id), handle.pack or handle.cell.folder
        state = listed.state if listed and listed.is_of(folder) else ""
        if state and state not in OVER:
            handle.missed = None
            # Others of its pack may wait on: once that starts, it sees the file that says stop.
            waits = stopping and handle.pack is not None and state == "PENDING"
            return _UNBEGUN if waits else None
        if written is None and state not in _BY_SLURM:
            handle.missed = handle.missed or time.monotonic()
            folder.chmod(folder.stat().st_mode)  # NFS then forgets which files it saw
            # A job submitted since Slurm was asked is not listed either.
            if min(self._queue.asked, time.monotonic() - _SLOW) < handle.missed:
                return None
            state = state or last_state(handle.queued.job_id)
        code, reason = written or _outcome_of_slurm(handle.queued, state)
        if code not in SIGNALLED or stopping or state == "CANCELLED" or not handle.again:
            return code, reason
        handle.again -= 1
        handle.queued = handle.missed = None
        handle.before = f"Slurm took it away ({state}), then: "
        self._new.append(handle)
        self._place(self._cells)
        return handle.refused

    def _unplaced(self, handle: _Submitted, stopping: bool) -> tuple[int, str] | None:
        """Submit a waiting job, with others that wait; return its outcome, if any."""
        if stopping:
            for waiting in (self._new, self._open):
                if handle in waiting:
                    waiting.remove(handle)
        elif handle.refused is None:
            self._place(1)
        return handle.refused or (_UNBEGUN if stopping else None)

    def end(self, handle: _Submitted, force: bool) -> None:
        """Leave a file that asks the command to save and end.

        A job that waits is cancelled, once nobody waits for it.
        """
        handle.cell.stop.touch()
        queued = handle.queued
        if queued is None:
            return
        shared = [h for h in self._live if h.queued and h.queued.job_id == queued.job_id]
        if force or all(other.cell.stop.exists() for other in shared):
            _cancel(queued.job_id, *(() if force else ("--state=PENDING",)))

    def news(self) -> str:
        """Say that Slurm does not answer any more, or does again."""
        silent, self._silent = self._silent, bool(self._queue.silence)
        if self._silent and not silent:
            return f"Slurm does not answer ({self._queue.silence}): its jobs go on, this waits"
        return "Slurm answers again" if silent and not self._silent else ""


def _cancel(job: str, *words: str) -> None:
    """Cancel a job; errors about one that is over are ignored."""
    subprocess.run(["scancel", *words, job], capture_output=True, check=False)


def _outcome_of_slurm(queued: Any, state: str) -> tuple[int, str]:
    """Return the outcome of a job that has written none."""
    if state in _BY_SLURM:
        return 143, f"Slurm ended it, its state is {state}"
    lines = (queued.stderr() or "").strip().splitlines() or ["without a word"]
    why = next((line for line in reversed(lines) if "Error: " in line), f"ended: {lines[-1]}")
    known = f"Slurm's state is {state}" if state else "Slurm knows it no more"
    return child.KILLED, f"{why}, {known}, see {queued.paths.stderr}"
