"""One cell of a study, as workers run it.

It may be started again at any time, after any end: what was begun goes on from its newest
checkpoint, what was not is branched from its prefix, and what is done is left alone.
"""

import argparse
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.run import api
from rlplast.run.imports import import_modules
from rlplast.run.messages import exit_code, say
from rlplast.run.read import read_json
from rlplast.study.folder import config_path, is_done, is_started, read_study
from rlplast.training.files import lock
from rlplast.training.run_folder import numbered

__all__ = ["GRACE", "STOPPED", "die_with", "lead", "main", "run_cell"]

GRACE = 120.0  # seconds that a cell may save for when it is stopped: a replay has some GB
STOPPED = 130  # exit code of a cell that has saved after a signal
PARENT = "RLPLAST_PARENT"  # environment variable: process id of who leads
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_PATIENCE = 120.0  # seconds for a process that was asked to stop to leave the run's folder
_NOTICED = 20.0  # seconds in which the first sees by itself that another one has failed


def run_cell(
    study: Path,
    cells: Mapping[str, Mapping[str, Any]],
    key: str,
    plan: Mapping[str, Any],
    how: str | None = None,
) -> None:
    """Bring one cell of a study to its end.

    `cells` are those of study.json by key, `plan` is what else it says. Another process that trains
    the cell together with the first one is told `how`: train or resume.

    Raises:
        DamagedFile: if it, or the prefix it goes on from, is damaged.
        RlplastError: if another process does not stop writing to the cell's folder.
    """
    cell = cells[key]
    folder = study / cell["folder"]
    config = api.read_config(read_json(config_path(study, key)))
    until = tuple(Time.parse(text) for text in cell["stops"])
    about = {
        "study": plan.get("name"),
        "task": cell["task"],
        "seed": cell["seed"],
        "arm": cell["arm"] or cell["kind"],
    }
    processes = plan.get("processes", 1)
    leads = processes > 1 and how is None
    if how is None:
        _wait_for(folder)
        if is_done(folder):
            return
        how = "resume"
        if not is_started(folder):
            _set_aside(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if cell["parent"] is None:
                how = "train"
            else:
                _branch(study, cells[cell["parent"]], folder, config, about)
    others = [sys.executable, "-m", "rlplast.study.cell", str(study), key, how]
    with lead(processes, others) if leads else nullcontext():
        if how == "train":
            api.train(config, folder, until=until, study=about)
            return
        try:
            api.resume(folder, until=until, report=say)
        except DamagedFile as error:
            raise DamagedFile(
                f"{error}; delete {folder} and start the study again: it is trained anew"
            ) from error


def _branch(study: Path, parent: Any, folder: Path, config: Any, about: Any) -> None:
    """Begin a cell where its prefix ends."""
    prefix = study / parent["folder"]
    if not is_done(prefix):
        raise ConfigError(f"{prefix} is not done: {folder.name} goes on from where it ends")
    api.branch(prefix, folder, config, tuple(map(Time.parse, parent["stops"])), about)


def _set_aside(folder: Path) -> None:
    """Make room for a run: rename what somebody may still want."""
    held = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 0)
    if all(path.name in ("config.yaml", ".config.yaml.tmp") for path in held):
        shutil.rmtree(folder, ignore_errors=True)
        return
    kept = folder.rename(numbered(folder.with_name(f"{folder.name}.aside-")))
    say(f"{folder} has no run.json: it begins anew; what it held is kept in {kept}")


def _wait_for(folder: Path) -> None:
    """Wait until nobody writes to a run's folder: a predecessor may still be saving."""
    until = time.monotonic() + _PATIENCE
    while (folder / ".lock").exists():
        if (file := lock(folder / ".lock")) is not None:
            file.close()
            return
        if time.monotonic() >= until:
            raise RlplastError(
                f"{folder} is still written to by another process after {_PATIENCE:.0f} s: end "
                "that one, or give the study's command again once it has ended"
            )
        time.sleep(0.2)


@contextmanager
def lead(processes: int, command: Sequence[str]) -> Iterator[None]:
    """Be rank 0 of so many processes, and start the others, by `command`.

    They end with this one. If one of them fails, this one does too, though it may be waiting for
    that one's numbers.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"TORCHELASTIC_RUN_ID": "rlplast", "WORLD_SIZE": str(processes)}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    over = threading.Event()
    others = []
    for rank in map(str, range(1, processes)):
        own = names | {"RANK": rank, "LOCAL_RANK": rank, PARENT: str(os.getpid())}
        own |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # as the first imports
        others.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **own})
        )
        threading.Thread(target=_fail_with, args=(others[-1], over), daemon=True).start()
    os.environ.update(names, RANK="0", LOCAL_RANK="0")
    try:
        yield
    finally:
        over.set()
        for other in others:
            other.kill()


def _fail_with(other: "subprocess.Popen[bytes]", over: threading.Event) -> None:
    """End this process if another one fails; after a stop, this one may still be saving."""
    code = other.wait()
    if code != 0 and not over.wait(GRACE if code == STOPPED else _NOTICED):
        os._exit(code if 0 < code != STOPPED else 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Be another process of a cell; returns its exit code."""
    parser = argparse.ArgumentParser(prog="rlplast.study.cell")
    parser.add_argument("study", type=Path)
    parser.add_argument("key")
    parser.add_argument("how", choices=("train", "resume"))
    given = parser.parse_args(argv)
    die_with(int(os.environ.pop(PARENT)), signal.SIGKILL)

    def run() -> int:
        plan = read_study(given.study)
        import_modules(plan.get("imports", ()))
        run_cell(given.study, {c["key"]: c for c in plan["cells"]}, given.key, plan, given.how)
        return 0

    return exit_code(run)


def die_with(parent: int, number: int = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when its parent, that is a thread, is gone."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main())
