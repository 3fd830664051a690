"""Jobs as tasks of a Ray cluster.

- `make`: connect to a cluster, or start one on this machine.
- `RayBackend`: a task runs the job's command on a node and returns its exit code.

All nodes must see the study's folder and this Python environment under the same paths. When a
node dies Ray runs the task on another one, where the command resumes.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

from rlplast.core.errors import ConfigError, shortened
from rlplast.core.optional import import_optional
from rlplast.study import child
from rlplast.study.executors import Backend, Job, cpus, gpus_of, room_for

__all__ = ["RayBackend", "make"]

_DEATHS = 3  # of nodes or workers under a job, until it has failed
_ANSWER = 10.0  # seconds a cluster has to answer


def make(threads: int, options: Mapping[str, Any], processes: int) -> "tuple[RayBackend, int]":
    """Connect to a cluster; returns a backend, and how many jobs there is room for.

    Args:
        threads: CPUs of each process of a job.
        options: ``address``: of a cluster (default: RAY_ADDRESS, else Ray is started on this
            machine, on as many CPUs as this process may use); ``gpus``: of each process of
            a job.
        processes: of a job.

    Raises:
        ConfigError: if Ray is missing, nobody answers at the address, or a job fits on no node.
    """
    address = options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
    if not isinstance(address, str):
        raise ConfigError(
            f"executor.address = {shortened(address)}: allowed is text, such as 'auto' or "
            "'ray://head:10001'"
        )
    gpus = gpus_of(options, processes)
    ray = import_optional("ray", "ray")
    _connect(ray, address)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(
        room_for(threads, gpus, has.get("CPU", 0), has.get("GPU", 0), processes) for has in nodes
    )
    if room < 1:
        ray.shutdown()
        raise ConfigError(
            f"executor ray: no node has room for a job of {threads * processes} threads and "
            f"{gpus * processes:g} GPUs: lower threads, gpus or processes"
        )
    return RayBackend(ray, gpus * processes), room


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start one; neither reports usage to anybody nor has a dashboard."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Exit codes need no object store to speak of.
    size = {"num_cpus": cpus(), "object_store_memory": 100 * 2**20} if address == "local" else {}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself would try for many minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
        ray.init(
            address,
            include_dashboard=False,
            log_to_driver=False,  # every job has its own log
            logging_level="WARNING",
            **size,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"executor ray: cannot connect to {shortened(address)} ({shortened(str(error), 90)}): "
            "start a cluster with `ray start --head` and give its address, or leave it out to use "
            "this machine"
        ) from error


class RayBackend(Backend):
    """Starts tasks through the module `ray`, which is connected."""

    def __init__(self, ray: Any, gpus: float) -> None:
        self._ray = ray
        # By value, so that the worker that watches a job need not import torch.
        ray.cloudpickle.register_pickle_by_value(child)
        self._run = ray.remote(num_gpus=gpus, max_retries=_DEATHS)(child.run)

    def start(self, job: Job) -> Any:
        """Submit a task."""
        return self._run.options(name=job.name, num_cpus=job.threads * job.processes).remote(job)

    def ended(self, handle: Any) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it waits or runs."""
        ready, _ = self._ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.TaskCancelledError:
            return child.STOPPED, "stopped before it began"
        except self._ray.exceptions.RayError as error:  # its node died, or its memory was full
            lines = str(error).strip().splitlines()
            return child.KILLED, f"Ray: {lines[0] if lines else type(error).__name__}"

    def end(self, handle: Any, force: bool) -> None:
        """Interrupt the task, or kill its worker; the command saves and ends either way."""
        self._ray.cancel(handle, force=force)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()
