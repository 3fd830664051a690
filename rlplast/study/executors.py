"""Where the workers of a study are: on this machine, on a Ray cluster, in Slurm jobs."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from rlplast.core.errors import ConfigError, RlplastError, check_choice, check_known, shortened
from rlplast.core.optional import import_optional
from rlplast.core.validation import check_value
from rlplast.study import node
from rlplast.study.folder import lines_of

__all__ = ["Executor", "make_executor"]

_OPTIONS = {"local": ("devices", "gpus"), "ray": ("address", "gpus"), "slurm": ("cells", "slurm")}
_SHARE = Annotated[float, Field(ge=0, le=1)]  # of a GPU
_COUNT = Annotated[int, Field(ge=0, le=1000)]
_CELLS = Annotated[int, Field(ge=1, le=1000)]  # of a Slurm job
_SECONDS = Annotated[int, Field(ge=1, le=65535)]  # what Slurm takes
_ROOT = str(Path(__file__).absolute().parents[2])  # not behind links: that holds other folders
_ANSWER = 10.0  # seconds a Ray cluster has to answer
_DEATHS = 3  # of nodes under a Ray task
_JOBS = 32  # of Slurm at once, by default
_AGAIN = 100  # times that Slurm's time limit may come to a job
_WARNING = int(node.GRACE)  # seconds before the time limit: early enough to save
_EARLY = 60  # seconds that Slurm may warn before that
_LEAST = 60  # seconds that a run needs to get somewhere
# Slow to import. Workers import those that this process has, since it built every arm.
_SLOW = ("torch._dynamo", "sklearn.datasets", "altair", "gymnasium", "mujoco")


class Executor:
    """Workers of one kind.

    Attributes:
        slots: how many cells may run at once.
        stays: whether workers go on when the study's process ends.
    """

    slots: int
    stays = False

    def start(self, root: Path, cells: int) -> None:
        """Start workers for a study's folder in which so many cells are left."""
        raise NotImplementedError

    def ended(self) -> str | None:
        """Return why no worker is left, empty if that is no fault; None while there are any."""
        raise NotImplementedError

    def stop(self) -> None:
        """Have workers save and end, and wait for that."""


def make_executor(
    kind: str, jobs: int | None, threads: int, options: Mapping[str, Any], processes: int = 1
) -> Executor:
    """Return an executor.

    Args:
        kind: ``local``, ``ray`` or ``slurm``.
        jobs: cells at once; default: what this machine or cluster has room for.
        threads: CPUs of each process of a cell.
        options: local: ``devices`` (GPUs of this machine; default: those that PyTorch sees),
            ``gpus`` (of a cell: 1, or 0.5 for half of one, 0 for none; default: cells share what
            there is); ray: ``address``, ``gpus``; slurm: ``slurm``, parameters of sbatch, and
            ``cells``, how many run side by side in a Slurm job.
        processes: of a cell, which train together, each on a GPU of its own.

    Raises:
        ConfigError: for an unknown kind or option, a value that is not allowed, a library or a
            cluster that is missing.
    """
    check_choice("executor.kind", kind, _OPTIONS)
    check_known(f"executor {kind}", options, _OPTIONS[kind])
    made = {"local": _Local, "ray": _Ray, "slurm": _Slurm}[kind]
    return made(jobs, threads, options, processes)


def room_for(threads: int, gpus: float, cores: float, devices: float, processes: int = 1) -> int:
    """Return how many cells fit on a machine; none uses parts of two GPUs.

    Examples:
        >>> room_for(threads=1, gpus=0.3, cores=8, devices=2)
        6
        >>> room_for(threads=1, gpus=1, cores=64, devices=8, processes=4)
        2
    """
    room = int(cores // (threads * processes))
    return min(room, int(devices) * int(1 / gpus) // processes) if gpus else room


def _gpus_of(options: Mapping[str, Any], processes: int) -> float:
    """Return how much of a GPU each process of a cell uses."""
    gpus = check_value("executor.gpus", options.get("gpus", 0), _SHARE)
    if 0 < gpus < 0.01 or (processes > 1 and gpus not in (0, 1)):
        raise ConfigError(
            f"executor.gpus = {gpus} with processes = {processes}: allowed is 0, or 0.01 to 1 for "
            "each cell; of several processes 0 or 1 for each"
        )
    return gpus


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _command(root: Path, jobs: int, *words: str) -> list[str]:
    """Return the command of workers: they run the code of this process, from wherever."""
    slow = "".join(f"import {name}; " for name in _SLOW if name in sys.modules)
    text = f"import sys; sys.path.insert(0, {_ROOT!r}); {slow}from rlplast.study.work import main; "
    program = (sys.executable, "-P", "-c", f"{text}sys.exit(main())")
    return [*program, str(root.resolve()), "--jobs", str(jobs), *words]


def _threads(number: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(number), "MKL_NUM_THREADS": str(number)}


class _Local(Executor):
    """Workers on this machine, which end with this process."""

    def __init__(
        self, jobs: int | None, threads: int, options: Mapping[str, Any], processes: int
    ) -> None:
        gpus, none = _gpus_of(options, processes), options.get("gpus") == 0
        seen = 0 if none else torch.cuda.device_count()  # asks NVML: a context would hold memory
        devices = check_value("executor.devices", options.get("devices", seen), _COUNT)
        if not none and devices < (processes if devices or gpus else 0):
            raise ConfigError(
                f"executor.devices = {devices} with processes = {processes}: allowed is a GPU for "
                f"each; default: those that PyTorch sees, {seen}; to plan for another machine, "
                "say how many that one has; gpus: 0 is for the CPU"
            )
        self.slots = jobs or max(1, room_for(threads, gpus, _cpus(), devices, processes))
        named = [g for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g.strip()]
        visible = (named or [str(i) for i in range(devices)])[: 0 if none else devices]
        # Plug-ins of the study are found where it finds them.
        path = os.pathsep.join(filter(None, sys.path))
        self._environment = {**_threads(threads), "PYTHONPATH": path}
        if none or "devices" in options or visible:
            self._environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def start(self, root: Path, cells: int) -> None:
        """Start a process that forks the workers."""
        self._log = root.resolve() / "logs" / "workers.log"
        try:
            command = _command(root, min(self.slots, cells))
            self._process = node.begin(command, self._log, self._environment)
        except OSError as error:
            raise RlplastError(f"workers cannot be started: {error}") from error

    def ended(self) -> str | None:
        """Return the last words of workers that have ended."""
        if self._process is None or self._process.poll() is None:
            return None
        if self._process.returncode <= 0:  # a signal is no fault of theirs
            return ""
        return (lines_of(self._log) or ["without a word"])[-1].removeprefix("rlplast: ")

    def stop(self) -> None:
        """Have them save and end."""
        if self._process is not None:
            node.end(self._process)


class _Ray(Executor):
    """Workers as tasks of a Ray cluster; all nodes see the study's folder and this Python."""

    def __init__(
        self, jobs: int | None, threads: int, options: Mapping[str, Any], processes: int
    ) -> None:
        address = options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
        address = check_value("executor.address", address, str, "ray://head:10001")
        gpus = _gpus_of(options, processes)
        self._ray = ray = import_optional("ray", "ray")
        _connect(ray, address)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(
            room_for(threads, gpus, has.get("CPU", 0), has.get("GPU", 0), processes)
            for has in nodes
        )
        if room < 1:
            ray.shutdown()
            raise ConfigError(
                f"executor ray: no node has room for a cell of {threads * processes} threads and "
                f"{gpus * processes:g} GPUs: lower threads, gpus or processes"
            )
        self.slots = jobs or room
        ray.cloudpickle.register_pickle_by_value(node)  # a task need not import torch
        needs = {"num_cpus": threads * processes, "num_gpus": gpus * processes}
        self._run = ray.remote(max_retries=_DEATHS, **needs)(node.run)
        self._environment, self._tasks = _threads(threads), list[Any]()

    def start(self, root: Path, cells: int) -> None:
        """Submit a task for each worker."""
        log = root.resolve() / "logs" / "workers.log"
        command = _command(root, 1, "--no-wait")
        count = min(self.slots, cells)
        self._tasks = [self._run.remote(command, log, self._environment) for _ in range(count)]

    def ended(self) -> str | None:
        """Return what Ray or the workers say, once no task is left."""
        ready, left = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        if left:
            return None
        codes = []
        for task in ready:
            try:
                codes.append(self._ray.get(task))
            except self._ray.exceptions.RayError as error:  # its node died, or memory was full
                return f"Ray: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        return f"exit code {max(codes)}, see logs/workers.log" if any(codes) else ""

    def stop(self) -> None:
        """Interrupt the tasks, wait until cells have saved, and leave the cluster."""
        for task in self._tasks:
            self._ray.cancel(task)
        if self._tasks:
            count = len(self._tasks)
            self._ray.wait(self._tasks, num_returns=count, timeout=node.GRACE + 30)
        self._ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start one; neither reports usage to anybody nor has a dashboard."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Exit codes need no object store to speak of.
    size = {"num_cpus": _cpus(), "object_store_memory": 100 * 2**20} if address == "local" else {}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself would try for many minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
        ray.init(
            address,
            include_dashboard=False,
            log_to_driver=False,  # workers have a log
            logging_level="WARNING",
            **size,
        )
    except Exception as error:  # a node that does not start in time raises no other
        raise ConfigError(
            f"executor ray: cannot connect to {shortened(address)} ({shortened(str(error), 90)}): "
            "start a cluster with `ray start --head` and give its address, or leave it out to use "
            "this machine"
        ) from error


class _Slurm(Executor):
    """Workers as an array of Slurm jobs, through submitit; the study only watches them."""

    stays = True

    def __init__(
        self, jobs: int | None, threads: int, options: Mapping[str, Any], processes: int
    ) -> None:
        self._submitit = import_optional("submitit", "slurm")
        self._cells = check_value("executor.cells", options.get("cells", 1), _CELLS)
        names = self._submitit.SlurmExecutor._valid_parameters()
        self._parameters = _checked(options.get("slurm", {}), names)
        self._parameters["cpus_per_task"] = threads * processes * self._cells
        if self._submitit.SlurmExecutor.affinity() < 0:
            raise ConfigError(
                "executor slurm: there is no srun on this machine: run the study on a login node "
                "of the cluster, or choose the executor local or ray"
            )
        self.slots = jobs or _JOBS * self._cells
        self._environment = _threads(threads)

    def start(self, root: Path, cells: int) -> None:
        """Submit an array of as many jobs as have something to do."""
        import cloudpickle

        cloudpickle.register_pickle_by_value(node)  # a job need not import torch
        folder = root.resolve() / "slurm"
        folder.mkdir(exist_ok=True)
        jobs = -(-min(self.slots, cells) // self._cells)
        executor = self._submitit.SlurmExecutor(folder, max_num_timeout=_AGAIN)
        command, log = _command(root, self._cells, "--no-wait"), folder.parent / "logs/workers.log"
        try:
            executor.update_parameters(job_name=root.name, **self._parameters)
            with redirect_stderr(io.StringIO()):  # submitit prints what the error says
                executor.map_array(node.SlurmJob(command, log, self._environment), range(jobs))
        except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
            raise RlplastError(f"Slurm did not take the workers: {error}") from error

    def ended(self) -> str | None:
        """Return None: Slurm may start one at any time."""
        return None


def _checked(given: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the parameters of every job, the time of the warning among them."""
    key = "executor.slurm"
    given = check_value(key, given, dict[str, Any])
    check_known(key, given, set(names) - {"job_name", "cpus_per_task"})
    if "time" not in given:
        raise ConfigError(
            f"{key} has no time: write the whole minutes of a job into the study's file, "
            "executor: {kind: slurm, slurm: {time: 240}}; a cell that needs longer goes on in the "
            "same job, which is queued again"
        )
    minutes = check_value(f"{key}.time", given["time"], int, 240)
    warning = given.get("signal_delay_s", _WARNING)
    warning = check_value(f"{key}.signal_delay_s", warning, _SECONDS, _WARNING)
    least = -(-(_LEAST + _EARLY + warning) // 60)
    if minutes < least:
        raise ConfigError(
            f"{key}.time = {minutes}: cells are asked to save {warning} s before the end "
            f"(signal_delay_s), by Slurm up to {_EARLY} s earlier: allowed is {least} minutes or "
            "more"
        )
    more = given.get("additional_parameters") or {}
    more = check_value(f"{key}.additional_parameters", more, dict[str, Any])
    own = {"time": minutes, "signal_delay_s": warning}
    return {**given, **own, "additional_parameters": {"requeue": True, **more}}
