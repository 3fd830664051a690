"""Jobs of a Slurm cluster, through submitit.

- `make`: a backend from its options.
- `SlurmBackend`: submits jobs, submits them again, and reads how they ended.
- `Attempt`: what runs inside a Slurm job.

Login node and compute nodes must see the study's folder and this Python environment under the same
paths. Beside a job's log lies a folder ``slurm`` with submitit's files, the job's id, and how it
ended, as JSON: what submitit pickles as a job's result is not opened. A job whose time limit nears
or which is preempted saves and is queued again. Jobs outlive a study that is killed; started
again, it finds those that still wait or run by their id.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError, check_known
from rlplast.core.optional import import_optional
from rlplast.core.training.run_folder import write_json, write_text
from rlplast.study import child
from rlplast.study.child import Job

__all__ = ["Attempt", "SlurmBackend", "make"]

_JOBS = 32  # at once, where nothing is said
_AGAIN = 10  # times that a job is queued again: by submitit at a time limit, and by this
_FRESH = 15  # seconds for which Slurm's answer about all jobs holds
_SLOW = 15.0  # seconds until a network file system surely shows a file that was written
_SIGNALLED = (130, 143)  # exit codes: saved after SIGTERM; ended by it
_ENDED_BY_SLURM = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT")
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "CONFIGURING", "COMPLETING", "SUSPENDED")


def make(threads: int, options: Mapping[str, Any]) -> "tuple[SlurmBackend, int]":
    """Return a backend that submits to Slurm, and how many jobs to queue at once.

    Args:
        threads: CPUs of a job; each job says its own.
        options: ``slurm``: parameters of sbatch as submitit names them (partition, account, qos,
            mem, gpus_per_node, constraint, …), of which ``time``, whole minutes, must be there.

    Raises:
        ConfigError: if submitit or Slurm is missing, or a parameter is not allowed.
    """
    submitit = import_optional("submitit", "slurm")
    given = options.get("slurm", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"executor slurm: slurm is {given!r}, not a mapping of sbatch parameters")
    allowed = submitit.SlurmExecutor._valid_parameters() - {"job_name", "cpus_per_task"}
    check_known("executor slurm: slurm", given, allowed)
    minutes = given.get("time")
    if type(minutes) is not int or minutes < 1:
        raise ConfigError(
            f"executor slurm: slurm.time is {minutes!r}: give the jobs' time limit in whole "
            "minutes, such as 240; a job that needs longer is queued again and resumes"
        )
    if submitit.SlurmExecutor.affinity() < 0:
        raise ConfigError(
            "executor slurm: there is no srun on this machine: run the study on a login node of "
            "the cluster, or choose the executor local or ray"
        )
    # Jobs are warned early enough to save.
    return SlurmBackend(submitit, {"signal_delay_s": int(child.GRACE) + 30, **given}), _JOBS


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

        try:
            code, reason = self._run()
        except UncompletedJobError:  # from its handler of Slurm's warning
            code, reason = child.KILLED, "its time limit came too often: raise slurm.time"
        write_json(_result(submitit.JobEnvironment()), {"exit": code, "reason": reason})

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
    """A job in the queue, and how often it may be submitted again."""

    attempt: Attempt
    queued: Any  # submitit's job
    again: int


class SlurmBackend:
    """Submits jobs through the module `submitit`, with parameters of sbatch."""

    pause = 2.0

    def __init__(self, submitit: Any, parameters: Mapping[str, Any]) -> None:
        import cloudpickle

        # By value, so that the process that watches a job need not import torch.
        for module in (child, sys.modules[__name__]):
            cloudpickle.register_pickle_by_value(module)
        # submitit's own one asks Slurm every ten minutes.
        submitit.SlurmJob.watcher = type(submitit.SlurmJob.watcher)(delay_s=_FRESH)
        self._submitit = submitit
        self._parameters = parameters

    def start(self, job: Job) -> _Submitted:
        """Submit a job, or find it in the queue when an earlier study submitted it."""
        stop = Path(job.folder, job.log.parent, "slurm", f"{job.log.stem}.stop")
        stop.parent.mkdir(parents=True, exist_ok=True)
        stop.unlink(missing_ok=True)
        attempt = Attempt(job, stop)
        return _Submitted(attempt, self._find(attempt) or self._submit(attempt), _AGAIN)

    def _submit(self, attempt: Attempt) -> Any:
        job, stop = attempt.job, attempt.stop
        executor = self._submitit.SlurmExecutor(stop.parent, max_num_timeout=_AGAIN)
        try:
            executor.update_parameters(
                job_name=job.name, cpus_per_task=job.threads, **self._parameters
            )
            queued = executor.submit(attempt)
        except (RuntimeError, ValueError) as error:
            raise RlplastError(f"Slurm did not take it: {error}") from error
        write_text(stop.with_suffix(".id"), queued.job_id)
        return queued

    def _find(self, attempt: Attempt) -> Any | None:
        """Return the job of an earlier study that still waits or runs."""
        file = attempt.stop.with_suffix(".id")
        if not file.exists():
            return None
        queued = self._submitit.SlurmJob(file.parent, file.read_text(encoding="utf-8"))
        alive = queued.get_info(mode="force").get("State") in _ALIVE
        return queued if alive and not _result(queued).exists() else None

    def ended(self, handle: _Submitted) -> tuple[int, str] | None:
        """Return exit code and reason, or None while the job waits, runs, or is queued again."""
        queued, state = handle.queued, handle.queued.state
        returned = _result(queued).exists()
        if not returned and state in (*_ALIVE, "UNKNOWN"):  # a new job is not known at once
            return None
        cancelled = state.startswith("CANCELLED")
        if returned or not (cancelled or state in _ENDED_BY_SLURM):
            code, reason = self._outcome(queued)
        else:
            code, reason = 143, f"Slurm ended it, its state is {state}"
        stopped = cancelled or handle.attempt.stop.exists()
        if code not in _SIGNALLED or stopped or not handle.again:
            return code, reason
        queued.cancel(check=False)  # Slurm may have queued it again itself
        handle.again -= 1
        try:
            handle.queued = self._submit(handle.attempt)
        except RlplastError as error:
            return child.CANNOT_START, f"Slurm took it away ({state}), then: {error}"
        return None

    def _outcome(self, queued: Any) -> tuple[int, str]:
        """Return what the attempt wrote, or why it did not; waits for a slow file system."""
        file, until = _result(queued), time.monotonic() + _SLOW
        while not file.exists() and time.monotonic() < until:
            file.parent.chmod(file.parent.stat().st_mode)  # NFS then forgets that it saw none
            time.sleep(0.5)
        with suppress(OSError, ValueError, LookupError, TypeError):  # none, or a damaged one
            found = json.loads(file.read_bytes())
            return int(found["exit"]), str(found["reason"])
        said = (queued.stderr() or "").strip().splitlines() or ["without a word"]
        why = next((line for line in reversed(said) if "Error: " in line), f"ended: {said[-1]}")
        return child.KILLED, f"{why}, Slurm's state is {queued.state}, see {queued.paths.stderr}"

    def end(self, handle: _Submitted, force: bool) -> None:
        """Leave a file that asks the command to save and end; a job that waits is cancelled."""
        handle.attempt.stop.touch()
        waiting = [] if force else ["--state=PENDING"]
        subprocess.call(["scancel", *waiting, handle.queued.job_id])

    def close(self) -> None:
        """Nothing is held; jobs in the queue stay there."""
