"""Which parameters of sbatch a study may give its jobs.

- `check_parameters`: refuses, by name, what a cell's job cannot have.
- `check_cells`: how many cells share a job.
"""

from collections.abc import Collection, Mapping
from typing import Any

from rlplast.core.errors import ConfigError, check_known
from rlplast.study import child

__all__ = ["check_cells", "check_parameters"]

_WARNING = int(child.GRACE) + 30  # seconds before the time limit: early enough to save
_EARLY = 60  # seconds that Slurm may warn a job before that (`man sbatch`, --signal)
_LEAST = 60  # seconds of a try in which a run can start and get somewhere
_OURS = {  # parameters by sbatch's names, and what says them
    "time": "say slurm.time",
    "signal": "say slurm.signal_delay_s",
    "nodes": "a cell is one process",
    "ntasks": "a cell is one process",
    "ntasks-per-node": "a cell is one process",
    "array": "each cell is a job of its own",
    "cpus-per-task": "say the study's threads",
    "job-name": "it is the cell's",
    "output": "the study has its own logs",
    "error": "the study has its own logs",
    "open-mode": "the study has its own logs",
    "requeue": "a cell's job is queued again at its time limit",
    "no-requeue": "a cell's job is queued again at its time limit",
}


def check_cells(cells: Any) -> int:
    """Return how many cells share a Slurm job.

    Raises:
        ConfigError: if it is not 1 to 1000.
    """
    if type(cells) is not int or not 1 <= cells <= 1000:
        raise ConfigError(
            f"executor slurm: cells is {cells!r}: allowed is a whole number, 1 to 1000, of cells "
            "that run side by side in one Slurm job; default: 1"
        )
    return cells


def check_parameters(given: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the parameters of every job, the time of the warning among them.

    Args:
        given: what the study's config says under ``slurm``.
        names: of all parameters that submitit takes.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"executor slurm: slurm is {given!r}, not a mapping of sbatch parameters")
    check_known("executor slurm: slurm", given, set(names) - {"job_name", "cpus_per_task"})
    for key in ("nodes", "ntasks_per_node"):
        if given.get(key, 1) != 1 or isinstance(given.get(key), bool):
            raise ConfigError(
                f"executor slurm: slurm.{key} is {given[key]!r}: allowed is 1: a cell "
                "starts its own processes; for N of them say the study's processes: N and "
                "slurm.gpus_per_node: N"
            )
    warning = given.get("signal_delay_s", _WARNING)
    if type(warning) is not int or not 1 <= warning <= 65535:
        raise ConfigError(
            f"executor slurm: slurm.signal_delay_s is {warning!r}: allowed are whole seconds, "
            f"1 to 65535, that a job may save for before its time limit; default: {_WARNING}"
        )
    _check_more(given.get("additional_parameters"))
    _check_time(given.get("time"), warning)
    return {"signal_delay_s": warning, **given}


def _check_time(minutes: Any, warning: int) -> None:
    """Check that a job may work for a while before it is asked to save."""
    if type(minutes) is not int or minutes < 1:
        raise ConfigError(
            f"executor slurm: slurm.time is {minutes!r}: write the whole minutes of a job "
            "into the study's file, executor: {kind: slurm, slurm: {time: 240}}; a job that needs "
            "longer is queued again and resumes"
        )
    least = -(-(_LEAST + _EARLY + warning) // 60)
    if minutes < least:
        raise ConfigError(
            f"executor slurm: slurm.time is {minutes}, {60 * minutes} s: a job is asked to save "
            f"{warning} s before its end (signal_delay_s), by Slurm up to {_EARLY} s earlier, "
            f"which leaves {max(0, 60 * minutes - warning - _EARLY)} s a try: allowed is {least} "
            "minutes or more"
        )


def _check_more(more: Any) -> None:
    """Check that parameters under sbatch's own names do not undo the others."""
    if more is None:
        return
    where = "executor slurm: slurm.additional_parameters"
    if not isinstance(more, Mapping):
        raise ConfigError(f"{where} is {more!r}, not a mapping of sbatch parameters")
    for key, value in more.items():
        name = str(key).replace("_", "-")
        for own, why in _OURS.items():
            if own.startswith(name):  # sbatch takes the beginnings of names, too
                raise ConfigError(f"{where}.{key} is {value!r}, which is not allowed: {why}")
