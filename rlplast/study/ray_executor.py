"""Jobs as tasks of a Ray cluster.

- `make`: connect to a cluster, or start one on this machine.
- `RayBackend`: a task runs the job's command on a node and returns its exit code.

All nodes must see the study's folder and this Python environment under the same paths. When a
node dies Ray runs the task on another one, where the command resumes.
"""

import os
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any

from rlplast.core.errors import ConfigError
from rlplast.core.optional import import_optional
from rlplast.study import child
from rlplast.study.executors import Executor, Job, cpus, number, places

__all__ = ["RayBackend", "make"]

_LATER = 10.0  # seconds Ray has, after a job's own grace time, to tell that the job has ended
_ANSWER = 10.0  # seconds a cluster has to answer
_STOPPED = 130


def make(jobs: int | None, threads: int, options: Mapping[str, Any]) -> Executor:
    """Connect to a cluster and return an executor on it.

    Args:
        jobs: jobs at once; default: as many as the cluster has room for at the start.
        threads: CPUs of a job.
        options: ``address``: of a cluster (default: RAY_ADDRESS, else Ray is started on this
            machine, on as many CPUs as this process may use); ``gpus``: of a job, 0.5 for half
            of one; ``retries_on_node_death`` (3).

    Raises:
        ConfigError: if Ray is missing, nobody answers at the address, or a job fits on no node.
    """
    gpus = number(options, "gpus", 0.0)
    retries = int(number(options, "retries_on_node_death", 3, whole=True))
    ray = import_optional("ray", "ray")
    _connect(ray, options.get("address"))
    room = _room(ray.nodes(), threads, gpus)
    if room < 1:
        ray.shutdown()
        raise ConfigError(
            f"executor ray: no node has room for a job of {threads} threads and {gpus:g} GPUs: "
            "lower threads or gpus"
        )
    backend = RayBackend(ray, gpus, retries, options["grace"])
    return Executor(backend, jobs or room, options["grace"] + _LATER)


def _connect(ray: Any, address: str | None) -> None:
    """Join a cluster, or start one; neither reports usage to anybody nor has a dashboard."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    # Exit codes need no object store to speak of.
    size = {"num_cpus": cpus(), "object_store_memory": 100 * 2**20} if address == "local" else {}
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        ray.init(
            address,
            include_dashboard=False,
            log_to_driver=False,  # every job has its own log
            logging_level="WARNING",
            **size,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"executor ray: cannot connect to {address!r} ({error}): start a cluster with "
            "`ray start --head` and give its address, or leave it out to use this machine"
        ) from error
    finally:
        if main:  # Ray's own handler would end the study without stopping its jobs
            signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Try to reach an address of the form host:port; Ray itself would try for many minutes.

    Raises:
        OSError: if nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()


def _room(nodes: list[dict[str, Any]], threads: int, gpus: float) -> int:
    """Return how many jobs fit on the nodes that are alive."""
    room = 0
    for node in nodes:
        if node["Alive"]:
            fit = int(node["Resources"].get("CPU", 0) // threads)
            if gpus:
                fit = min(fit, places(node["Resources"].get("GPU", 0), gpus))
            room += fit
    return room


class RayBackend:
    """Starts tasks.

    Args:
        ray: the module, connected.
        gpus: of each job.
        retries: how many nodes or workers may die under a job.
        grace: seconds a job may take to save when stopped.
    """

    pause = 0.2

    def __init__(self, ray: Any, gpus: float, retries: int, grace: float) -> None:
        self._ray = ray
        self._gpus = gpus
        self._retries = retries
        self._grace = grace
        # By value, so that the worker that watches a job need not import torch.
        ray.cloudpickle.register_pickle_by_value(child)
        self._run = ray.remote(child.run)

    def start(self, job: Job) -> Any:
        """Submit a task."""
        task = self._run.options(
            name=job.name,
            num_cpus=job.threads,
            num_gpus=self._gpus,
            max_retries=self._retries,
        )
        log = str(job.log.absolute())
        return task.remote(job.command, log, job.threads, os.getcwd(), self._grace)

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it waits or runs."""
        ready, _ = self._ray.wait([handle], timeout=0)
        if not ready:
            return None
        known = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except known.TaskCancelledError:
            return _STOPPED, "stopped before it began"
        except known.OutOfMemoryError as error:
            return 137, f"killed by Ray, its node ran out of memory: {_first_line(error)}"
        except (known.WorkerCrashedError, known.NodeDiedError) as error:
            retries = f"after {self._retries} retries" if self._retries else "without retries"
            return 137, f"its node or worker died, {retries}: {_first_line(error)}"
        except known.RayError as error:
            return 1, f"Ray: {_first_line(error)}"

    def ask(self, handle: Any) -> None:
        """Interrupt the task, which asks the command to save and end."""
        self._ray.cancel(handle, force=False)

    def kill(self, handle: Any) -> None:
        """Kill the task's worker, whose command then ends too."""
        self._ray.cancel(handle, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
