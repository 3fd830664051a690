"""What ``run.json`` says of a run: command, versions, machine, status."""

import os
import platform
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from rlplast import plugins
from rlplast.core.errors import Diverged, Interrupted, RlplastError
from rlplast.run.imports import imported
from rlplast.training.config import RunConfig
from rlplast.training.run_folder import write_json

__all__ = [
    "command",
    "device_words",
    "first_info",
    "reporting_outcome",
    "restart_info",
    "resume_info",
    "resume_words",
    "resumed_info",
    "run_ids",
    "status",
    "versions",
]

PACKAGES = (
    "rlplast",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "mujoco",
    "dm-control",
    "safetensors",
    "scikit-learn",
    "timm",
)


@contextmanager
def status(path: Path, info: dict[str, Any]) -> Iterator[None]:
    """Keep run.json's status true, whatever ends the run; of several processes rank 0 does."""
    from rlplast.training import distributed  # here, as torch takes a second

    if distributed.rank() > 0:
        yield
        return
    info = {key: value for key, value in info.items() if key not in ("ended", "diverged")}
    write_json(path / "run.json", info | {"status": "running"})

    def write(ended: str) -> None:
        try:
            write_json(path / "run.json", info | {"status": ended, "ended": _moment()})
        except RlplastError:
            if ended == "done":  # else the first error is the one to report
                raise

    with reporting_outcome(write):
        try:
            yield
        except Diverged:
            info["diverged"] = True
            raise


@contextmanager
def reporting_outcome(report: Callable[[str], None]) -> Iterator[None]:
    """Report how a block ended: done, interrupted or failed."""
    ended = "failed"
    try:
        yield
        ended = "done"
    except Interrupted:
        ended = "interrupted"
        raise
    finally:
        report(ended)


def command() -> list[str]:
    """Return the command that runs, as it may be given again."""
    program = Path(sys.argv[0])
    module = ["python", "-m", program.parent.name]
    return [*(module if program.name == "__main__.py" else [program.name]), *sys.argv[1:]]


def versions() -> dict[str, str]:
    """Return the versions of what results depend on, by package."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *sorted(plugins.packages())):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def processor() -> str:
    """Return the name of this machine's processor, and how many it has."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} × {len(names) or os.cpu_count()}"


def first_info(config: RunConfig, study: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what run.json says of a run that begins, as a cell of a study or alone."""
    return {
        "id": uuid.uuid4().hex,
        "command": command(),
        "versions": versions(),
        "git_revision": _git_revision(),
        "host": socket.gethostname(),
        "seed": config.seed,
        "threads": config.threads,
        **_now(config),
        "started": _moment(),
        **({"imports": imported()} if imported() else {}),
        **({"study": dict(study)} if study else {}),
    }


def resume_info(trainable: Any, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what run.json says of how a trainer's environment goes on after an interruption.

    It is decided once in a run (`rlplast.agents.tasks.Tasks.decide`): what `info` says stays.
    """
    if not hasattr(trainable, "decide_resume"):
        return {}
    return {"environment": trainable.decide_resume(info.get("environment", {}))}


def restart_info(info: Mapping[str, Any], trainable: Any) -> dict[str, Any]:
    """Return what run.json says of new episodes that a resume began, against its level."""
    why = getattr(trainable, "restart_reason", "")
    if not why:
        return {}
    here = {"env_steps": trainable.clock.env_steps, "reason": why}
    return {"new_episodes": [*info.get("new_episodes", []), here]}


def resume_words(info: Mapping[str, Any]) -> str:
    """Say how a run goes on after an interruption; empty if it has no environment."""
    found = info.get("environment")
    if not found:
        return ""
    words = {
        "exact": "exact: it goes on as if there had been no interruption",
        "replayed": "replayed: open episodes are played again from their seeds and actions",
        "restarted": "restarted: new episodes begin, so the run is not the uninterrupted one, and "
        "what outlives an episode is not in evaluations",
    }[found["resume"]]
    words = f"{words} ({found['reason']})" if found["reason"] else words
    begun = [
        f"; new episodes began at {x['env_steps']:,} env_steps ({x['reason']})"
        for x in info.get("new_episodes", [])
    ]
    return words + "".join(begun)


def run_ids(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a run's id, then those of the runs it was branched from; none if it has no id."""
    own = [info["id"]] if info.get("id") else []
    return (*own, *info.get("branched_from", {}).get("ids", ()))


def device_words(device: Mapping[str, Any]) -> str:
    """Say what a device is."""
    return str(device.get("name") or device.get("type"))


def resumed_info(info: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """Return what run.json says besides, once a run is resumed."""
    devices = list(info.get("devices", []))
    now = _now(config)
    modules = list(dict.fromkeys([*info.get("imports", []), *imported()]))
    return {
        "resumed": _moment(),
        **now,
        "devices": devices if devices[-1:] == now["devices"] else [*devices, *now["devices"]],
        **({"imports": modules} if modules else {}),
    }


def _now(config: RunConfig) -> dict[str, Any]:
    """Return what run.json says of a run that begins or goes on here: device, processes, length."""
    from rlplast.core.device import choose_device, device_info  # here, as torch takes a second
    from rlplast.run.length import length_info
    from rlplast.training import distributed

    return {
        "devices": [device_info(choose_device(config.device))],
        "processes": distributed.world(),
        "length": length_info(config),
    }


def _moment() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _git_revision() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
