"""Jobs of a Slurm cluster, through submitit.

- `make`: an executor from its options.
- `SlurmBackend`: submits jobs, requeues them, and reads how they ended.
- `Attempt`: what runs inside a Slurm job.

Login node and compute nodes must see the study's folder and this Python environment under the same
paths. Beside a job's log lies a folder ``slurm`` with submitit's files, the job's id and how it
ended. A job whose time limit nears or which is preempted saves and is queued again. Jobs outlive
a study that is killed; started again, it finds those that still wait or run by their id.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError, did_you_mean
from rlplast.core.optional import import_optional
from rlplast.study.child import CANNOT_START, end, exit_of, start
from rlplast.study.executors import Executor, Job, number

__all__ = ["Attempt", "SlurmBackend", "make"]

_JOBS = 32  # at once, where nothing is said
_ALIAS = {"cpus": "cpus_per_task", "gpus": "gpus_per_node"}
_SEEN = 60.0  # seconds after which all nodes see a file of a network file system
_FRESH = 5.0  # seconds for which an answer of Slurm holds
_STOPPED = 130
_TIMED_OUT = 124  # exit code of a job whose time limit came too often
_ENDED_BY_SIGNAL = (130, 143)  # exit codes: saved after SIGTERM; ended by it
_ENDED_BY_SLURM = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT")
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "CONFIGURING", "COMPLETING", "SUSPENDED")


def make(jobs: int | None, threads: int, options: Mapping[str, Any]) -> Executor:
    """Return an executor that submits to Slurm.

    Args:
        jobs: jobs queued or running at once; default: 32.
        threads: CPUs of a job.
        options: ``slurm``: parameters of sbatch as submitit names them (partition, account, qos,
            mem, gpus, cpus, constraint, …), of which ``time``, whole minutes, must be there;
            ``requeues``: how often a job may be queued again (10); ``cluster``: slurm, or local
            to try it without Slurm.

    Raises:
        ConfigError: if submitit or Slurm is missing, or a parameter is not allowed.
    """
    requeues = int(number(options, "requeues", 10, whole=True))
    cluster = options.get("cluster", "slurm")
    if cluster not in ("slurm", "local"):
        hint = did_you_mean(str(cluster), ("slurm", "local"))
        raise ConfigError(f"executor slurm: cluster is {cluster!r}: {hint}")
    submitit = import_optional("submitit", "slurm")
    given = options.get("slurm", {})
    parameters = _parameters(submitit, given, cluster, threads, options["grace"])
    if cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
        raise ConfigError(
            "executor slurm: there is no srun on this machine: run the study on a login node of "
            "the cluster, or choose the executor local or ray"
        )
    backend = SlurmBackend(submitit, cluster, parameters, requeues, options["grace"])
    return Executor(backend, jobs or _JOBS, options["grace"] + _SEEN)


def _parameters(
    submitit: Any, given: Any, cluster: str, threads: int, grace: float
) -> dict[str, Any]:
    """Return parameters of submitit.

    Raises:
        ConfigError: for unknown ones, or without a time.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"executor slurm: slurm is {given!r}, not a mapping of sbatch parameters")
    allowed = submitit.SlurmExecutor._valid_parameters() - {"job_name"}
    for key in given:
        if key not in allowed and key not in _ALIAS:
            hint = did_you_mean(str(key), (*allowed, *_ALIAS))
            raise ConfigError(f"executor slurm: sbatch has no {key!r} here: {hint}")
    if "time" not in given or not number(given, "time", 0, whole=cluster == "slurm"):
        raise ConfigError(
            "executor slurm: slurm.time is missing: give the jobs' time limit in minutes, such as "
            "240; a job that needs longer is queued again and resumes"
        )
    # Jobs are warned early enough to save.
    fixed = {"cpus_per_task": threads, "signal_delay_s": int(grace) + 30}
    return {**fixed, **{_ALIAS.get(str(key), str(key)): value for key, value in given.items()}}


@dataclass
class Attempt:
    """The function of a Slurm job: starts the command, sees it through, writes how it ended.

    Args:
        command: of the job, like log, threads and cwd.
        log: absolute path.
        threads: of the command.
        cwd: folder to run it in.
        grace: seconds it may take to save.
        ended: file for exit code and reason.
        stop: file that asks the command to save and end.
    """

    command: tuple[str, ...]
    log: Path
    threads: int
    cwd: str
    grace: float
    ended: Path
    stop: Path
    _child: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def __call__(self) -> None:
        """Run the command to its end."""
        self.ended.unlink(missing_ok=True)  # of an attempt that was queued again
        if self.stop.exists():
            return self._write(_STOPPED, "stopped before it began")
        try:
            self._child = start(self.command, self.log, self.threads, cwd=self.cwd)
        except OSError as error:
            return self._write(CANNOT_START, f"cannot be started: {error}")
        while self._child.poll() is None:
            if self.stop.exists():
                end(self._child, self.grace)
            time.sleep(0.2)
        return self._write(*exit_of(self._child.wait()))

    def checkpoint(self) -> Any:
        """Have the command save and end, and return what runs when Slurm starts the job again.

        submitit calls this between two lines of the above, when Slurm has warned the job.
        """
        import submitit

        if self._child is not None:
            end(self._child, self.grace)
        # For the case that the job is not queued again.
        self._write(_TIMED_OUT, "its time limit came too often: raise slurm.time or requeues")
        return submitit.helpers.DelayedSubmission(replace(self, _child=None))

    def _write(self, code: int, reason: str) -> None:
        part = self.ended.with_suffix(".part")
        part.write_text(json.dumps({"exit": code, "reason": reason}), encoding="utf-8")
        part.replace(self.ended)


@dataclass(eq=False)
class _Submitted:
    """A job in the queue, and how often it may be submitted again."""

    job: Job
    attempt: Attempt
    queued: Any  # submitit's job
    again: int
    gone: float | None = None  # when it was first seen to have ended without a word
    asked: bool = False
    cancelled: bool = False  # while it waited


class SlurmBackend:
    """Submits jobs.

    Args:
        submitit: the module.
        cluster: ``slurm`` or ``local``.
        parameters: of sbatch, time in minutes.
        requeues: how often a job may be queued again, by submitit and by this.
        grace: seconds a job may take to save.
    """

    def __init__(
        self,
        submitit: Any,
        cluster: str,
        parameters: Mapping[str, Any],
        requeues: int,
        grace: float,
    ) -> None:
        import cloudpickle

        # By value, so that the process that watches a job need not import torch.
        for module in (sys.modules[start.__module__], sys.modules[__name__]):
            cloudpickle.register_pickle_by_value(module)
        self._submitit = submitit
        self._slurm = cluster == "slurm"
        self._parameters = dict(parameters)
        self._requeues = requeues
        self._grace = grace
        self.pause = 2.0 if self._slurm else 0.1
        self._patience = 20.0 if self._slurm else 0.0  # seconds until a file is surely seen
        self._looked = float("-inf")  # when Slurm was last asked for all states

    def start(self, job: Job) -> _Submitted:
        """Submit a job, or find it in the queue when an earlier study submitted it."""
        log = job.log.absolute()
        folder = log.parent / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        attempt = Attempt(
            job.command,
            log,
            job.threads,
            os.getcwd(),
            self._grace,
            ended=folder / f"{log.stem}.ended",
            stop=folder / f"{log.stem}.stop",
        )
        attempt.stop.unlink(missing_ok=True)
        queued = self._find(folder, log.stem)
        if queued is None:
            attempt.ended.unlink(missing_ok=True)
            queued = self._submit(job, attempt)
        return _Submitted(job, attempt, queued, self._requeues)

    def _submit(self, job: Job, attempt: Attempt) -> Any:
        folder = attempt.ended.parent
        parameters = {**self._parameters, "cpus_per_task": job.threads}
        if self._slurm:
            executor = self._submitit.SlurmExecutor(folder, max_num_timeout=self._requeues)
            executor.update_parameters(job_name=job.name, **parameters)
        else:
            executor = self._submitit.LocalExecutor(folder, max_num_timeout=self._requeues)
            known = {"timeout_min": parameters["time"]}
            executor.update_parameters(**known, signal_delay_s=parameters["signal_delay_s"])
        try:
            queued = executor.submit(attempt)
        except (self._submitit.core.utils.FailedJobError, RuntimeError, ValueError) as error:
            raise RlplastError(f"Slurm did not take it: {error}") from error
        (folder / f"{attempt.log.stem}.id").write_text(queued.job_id, encoding="utf-8")
        return queued

    def _find(self, folder: Path, name: str) -> Any | None:
        """Return the job of an earlier study that still waits or runs."""
        file = folder / f"{name}.id"
        if not self._slurm or not file.exists():
            return None
        queued = self._submitit.SlurmJob(folder, file.read_text(encoding="utf-8"))
        state = queued.get_info(mode="force").get("State", "UNKNOWN")
        return queued if state in _ALIVE else None

    def ended(self, handle: _Submitted) -> tuple[int, str] | None:
        """Return exit code and reason, or None while the job waits, runs, or is queued again."""
        if handle.cancelled:
            return _STOPPED, "stopped before it began"
        state = handle.queued.state
        if state != "PREEMPTED" and not handle.queued.done():
            return None
        found = self._read(handle)
        if found is None and state not in _ENDED_BY_SLURM and self._may_come(handle):
            return None
        outside = state in _ENDED_BY_SLURM if found is None else found[0] in _ENDED_BY_SIGNAL
        if outside and not handle.asked and not state.startswith("CANCELLED") and handle.again:
            try:
                self._submit_again(handle)
            except RlplastError as error:
                return CANNOT_START, f"Slurm took it away ({state}), then: {error}"
            return None
        where = handle.queued.paths.stderr
        return found or (137, f"ended without a word, Slurm's state is {state}, see {where}")

    def _may_come(self, handle: _Submitted) -> bool:
        """Whether the file that says how a job ended may still be on its way."""
        handle.gone = handle.gone or time.monotonic()
        return time.monotonic() - handle.gone < self._patience

    def _submit_again(self, handle: _Submitted) -> None:
        """Queue a job again that its node, its partition or an administrator has ended."""
        if self._slurm:
            handle.queued.cancel(check=False)  # Slurm may have queued it again itself
        handle.attempt.ended.unlink(missing_ok=True)
        handle.again -= 1
        handle.gone = None
        handle.queued = self._submit(handle.job, handle.attempt)

    @staticmethod
    def _read(handle: _Submitted) -> tuple[int, str] | None:
        try:
            found = json.loads(handle.attempt.ended.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return int(found["exit"]), str(found["reason"])

    def ask(self, handle: _Submitted) -> None:
        """Leave a file that asks the command to save and end; a job that waits is cancelled."""
        handle.asked = True
        handle.attempt.stop.touch()
        if self._slurm:
            fresh = time.monotonic() - self._looked < _FRESH  # one question is about all jobs
            info = handle.queued.get_info(mode="cache" if fresh else "force")
            self._looked = self._looked if fresh else time.monotonic()
            if info.get("State") == "PENDING":
                handle.queued.cancel(check=False)
                handle.cancelled = True

    def kill(self, handle: _Submitted) -> None:
        """Cancel the job."""
        handle.queued.cancel(check=False)

    def close(self) -> None:
        """Nothing is held; jobs in the queue stay there."""
