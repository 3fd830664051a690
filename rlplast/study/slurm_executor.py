"""Jobs of a Slurm cluster, through submitit.

- `make`: a backend from its options.
- `SlurmBackend`: submits jobs, submits them again, and reads how they ended.
- `Attempt`: what runs inside a Slurm job.

Login node and compute nodes must see the study's folder and this Python environment under the same
paths. Beside a job's log lies a folder ``slurm/<name of the log>`` with submitit's files and how
the job ended, as JSON: what submitit pickles as a job's result is not opened. A job whose time
limit nears or which is preempted saves and is queued again.

Whether a job is over, `squeue` says. What the job itself wrote counts only then: Slurm may queue a
job again after it has written how it ended. Jobs outlive a study that is killed. Started again, it
finds those that still wait or run by the path of their script.
"""

import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.optional import import_optional
from rlplast.core.training.run_folder import write_json
from rlplast.study import child
from rlplast.study.child import Job
from rlplast.study.slurm_options import check_parameters
from rlplast.study.slurm_queue import OVER, Queue, last_state

__all__ = ["Attempt", "SlurmBackend", "make"]

_JOBS = 32  # at once, where nothing is said
_AGAIN = 10  # times that a job is queued again: by submitit at a time limit, and by this
_FRESH = 15.0  # seconds for which Slurm's answer about all jobs holds
_SOON = 2.0  # the same, where the end of a job is near
_SLOW = 15.0  # seconds until a network file system surely shows a file that was written
_SIGNALLED = (130, 143)  # exit codes: saved after SIGTERM; ended by it
_BY_SLURM = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT")


def make(threads: int, options: Mapping[str, Any]) -> "tuple[SlurmBackend, int]":
    """Return a backend that submits to Slurm, and how many jobs to queue at once.

    Args:
        threads: CPUs of a job; each job says its own.
        options: ``slurm``: parameters of sbatch as submitit names them (partition, account, qos,
            mem, gpus_per_node, constraint, …), of which ``time``, whole minutes, must be there.

    Raises:
        ConfigError: if submitit or Slurm is missing, Slurm does not answer, or a parameter is not
            allowed.
    """
    submitit = import_optional("submitit", "slurm")
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
    return SlurmBackend(submitit, parameters, queue), _JOBS


@dataclass
class Attempt:
    """The function of a Slurm job: starts the command, sees it through, writes how it ended."""

    job: Job
    stop: Path  # a file that asks the command to save and end
    _child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Run the command to its end, and write exit code and reason."""
        import submitit
        from submitit.core.utils import UncompletedJobError

        result = _result(submitit.JobEnvironment())
        result.unlink(missing_ok=True)  # of an earlier start, after which it was queued again
        try:
            code, reason = self._run()
        except UncompletedJobError:  # from its handler of Slurm's warning
            code, reason = child.KILLED, "its time limit came too often: raise slurm.time"
        write_json(result, {"exit": code, "reason": reason})

    def _run(self) -> tuple[int, str]:
        if self.stop.exists():
            return child.STOPPED, "stopped before it began"
        try:
            self._child = child.start(self.job)
        except OSError as error:
            return child.cannot_start(error)
        while self._child.poll() is None:
            if self.stop.exists():
                child.end(self._child)
            time.sleep(0.2)
        return child.exit_of(self._child.wait())

    def checkpoint(self) -> Any:
        """Have the command save and end, and return what runs when Slurm starts the job again.

        submitit calls this between two lines of the above, when Slurm has warned the job.
        """
        import submitit

        if self._child is not None:
            child.end(self._child)
        return submitit.helpers.DelayedSubmission(replace(self, _child=None))


def _result(job: Any) -> Path:
    """Return where a job, as submitit names it here or inside of it, writes how it ended."""
    return job.paths.result_pickle.with_suffix(".json")


@dataclass(eq=False)
class _Submitted:
    """A job, and how often it may be submitted again."""

    attempt: Attempt
    again: int
    queued: Any = None  # submitit's job; None while Slurm does not answer
    placed: float = 0.0  # when this submitted it, by `time.monotonic`
    missed: float | None = None  # when it was first seen to have ended and left no word


class SlurmBackend:
    """Submits jobs through the module `submitit`, with parameters of sbatch."""

    pause = 2.0

    def __init__(self, submitit: Any, parameters: Mapping[str, Any], queue: Queue) -> None:
        import cloudpickle

        # By value, so that the process that watches a job need not import torch.
        for module in (child, sys.modules[__name__]):
            cloudpickle.register_pickle_by_value(module)
        self._submitit, self._parameters, self._queue = submitit, parameters, queue
        self._silent = False

    def start(self, job: Job) -> _Submitted:
        """Submit a job, or find it in the queue when an earlier study submitted it."""
        folder = Path(job.folder, job.log.parent, "slurm", job.log.stem).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        stop = folder / "stop"
        stop.unlink(missing_ok=True)
        handle = _Submitted(Attempt(job, stop), _AGAIN)
        self._place(handle)
        return handle

    def _place(self, handle: _Submitted) -> None:
        """Find or submit a job, unless Slurm does not answer.

        Raises:
            RlplastError: if Slurm refuses it.
        """
        folder = handle.attempt.stop.parent
        jobs = self._queue.jobs(_SOON)
        if jobs is None:
            return
        for number, listed in jobs.items():
            if listed.state not in OVER and listed.is_of(folder):
                job = self._submitit.SlurmJob(folder, number)
                if job.paths.submitted_pickle.exists():
                    handle.queued = job
                    return
                _cancel(number)  # its study was killed before it had written what to run
        try:
            handle.queued = self._submit(handle.attempt)
            handle.placed = time.monotonic()
        except RlplastError:
            if self._queue.jobs(0) is not None:  # it was no failure to reach Slurm
                raise

    def _submit(self, attempt: Attempt) -> Any:
        job = attempt.job
        executor = self._submitit.SlurmExecutor(attempt.stop.parent, max_num_timeout=_AGAIN)
        try:
            executor.update_parameters(
                job_name=job.name, cpus_per_task=job.threads, **self._parameters
            )
            with redirect_stderr(io.StringIO()):  # submitit prints what the error says
                return executor.submit(attempt)
        except (RuntimeError, ValueError) as error:
            raise RlplastError(f"Slurm did not take it: {error}") from error

    def ended(self, handle: _Submitted) -> tuple[int, str] | None:
        """Return exit code and reason, or None while the job waits, runs, or is queued again."""
        stopping = handle.attempt.stop.exists()
        if handle.queued is None:
            return (child.STOPPED, "stopped before it began") if stopping else self._retry(handle)
        said = _said(handle.queued)
        near = stopping or said is not None or handle.missed is not None
        # An answer from before it was submitted does not list it, though it may still run.
        unknown = said is not None and self._queue.asked < handle.placed
        jobs = self._queue.jobs(0 if unknown else _SOON if near else _FRESH)
        if jobs is None:
            return None
        listed, folder = jobs.get(handle.queued.job_id), handle.attempt.stop.parent
        state = listed.state if listed and listed.is_of(folder) else ""
        if state and state not in OVER:
            handle.missed = None
            return None
        if said is None and state not in _BY_SLURM:
            handle.missed = handle.missed or time.monotonic()
            folder.chmod(folder.stat().st_mode)  # NFS then forgets which files it saw
            # A job submitted since Slurm was asked is not listed either.
            if min(self._queue.asked, time.monotonic() - _SLOW) < handle.missed:
                return None
            state = state or last_state(handle.queued.job_id)
        code, reason = said or _unsaid(handle.queued, state)
        if code not in _SIGNALLED or stopping or state == "CANCELLED" or not handle.again:
            return code, reason
        handle.again -= 1
        handle.queued = handle.missed = None
        return self._retry(handle, f"Slurm took it away ({state}), then: ")

    def _retry(self, handle: _Submitted, before: str = "") -> tuple[int, str] | None:
        """Submit a job; its outcome, if Slurm refuses it."""
        try:
            self._place(handle)
        except RlplastError as error:
            return child.CANNOT_START, f"{before}{error}"
        return None

    def end(self, handle: _Submitted, force: bool) -> None:
        """Leave a file that asks the command to save and end; a job that waits is cancelled."""
        handle.attempt.stop.touch()
        if handle.queued is not None:
            _cancel(handle.queued.job_id, *(() if force else ("--state=PENDING",)))

    def news(self) -> str:
        """Say that Slurm does not answer any more, or does again."""
        silent, self._silent = self._silent, bool(self._queue.silence)
        if self._silent and not silent:
            return f"Slurm does not answer ({self._queue.silence}): its jobs go on, this waits"
        return "Slurm answers again" if silent and not self._silent else ""

    def close(self) -> None:
        """Nothing is held; jobs in the queue stay there."""


def _cancel(job: str, *words: str) -> None:
    """Cancel a job; Slurm's complaint about one that is over is of no use to anybody."""
    subprocess.run(["scancel", *words, job], capture_output=True, check=False)


def _said(queued: Any) -> tuple[int, str] | None:
    """Return exit code and reason that a job has written; None if there is no such file."""
    file = _result(queued)
    try:
        found = json.loads(file.read_bytes())
        return int(found["exit"]), str(found["reason"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        return child.KILLED, f"{file} is damaged: {error}"


def _unsaid(queued: Any, state: str) -> tuple[int, str]:
    """Return the outcome of a job that has written none."""
    if state in _BY_SLURM:
        return 143, f"Slurm ended it, its state is {state}"
    said = (queued.stderr() or "").strip().splitlines() or ["without a word"]
    why = next((line for line in reversed(said) if "Error: " in line), f"ended: {said[-1]}")
    known = f"Slurm's state is {state}" if state else "Slurm knows it no more"
    return child.KILLED, f"{why}, {known}, see {queued.paths.stderr}"
