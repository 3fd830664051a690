"""A study tried out: the same arms, each for a moment, and what to look at afterwards.

- `shrunk_study`: one seed, and one run of every arm.
- `PoolBackend`: runs cells in a few processes, one after the other.
- `faults_of`, `unmeasured`: which hooks of a cell did not fire, which metrics nobody measured.

What becomes of a run's own config is `rlplast.run.shrink`.
"""

import dataclasses
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlplast.run.read import read_lines
from rlplast.study import child
from rlplast.study.child import Job
from rlplast.study.plan import Cell
from rlplast.study.spec import StudyConfig

__all__ = ["PoolBackend", "faults_of", "shrunk_study", "unmeasured"]

# Metrics that are there only if an arm has what they measure.
_OF_ROWS = {"awake_fraction": "lifecycle", "unit_age": "cbp"}


def shrunk_study(study: StudyConfig) -> StudyConfig:
    """Return a study with one seed, and the first run of each grid and sample.

    All tasks and all arms stay. Cells run here, one thread each, and are not tried again.
    """
    arms = {name: _first(arm) if arm else arm for name, arm in study.arms.items()}
    smaller = dataclasses.replace(
        study,
        seeds=study.seed_list()[:1],
        arms=arms,
        baseline=None,
        threads=1,
        jobs=None,
        retries=0,
        executor={"kind": "local"},
    )
    kept = [name for name, _ in smaller.expanded()]
    return dataclasses.replace(smaller, baseline=study.baseline if study.baseline in kept else None)


def _first(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm that stands for one run."""
    arm = dict(arm)
    if arm.get("grid"):
        arm["grid"] = {key: values[:1] for key, values in arm["grid"].items()}
    if arm.get("sample"):
        arm["sample"] = {**arm["sample"], "count": 1}
    return arm


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process that runs one job after the other, and the pipe to it."""

    process: Any
    pipe: Connection


class PoolBackend:
    """Processes that each run many cells: all but the first start without importing anything.

    Args:
        main: what is called with the words of a job's command; returns the exit code.
    """

    pause = 0.02

    def __init__(self, main: Callable[[Sequence[str]], int]) -> None:
        self._main = main
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([main.__module__])
        self._idle: list[_Worker] = []

    def start(self, job: Job) -> _Worker:
        """Give a job to a process that is idle, or to a new one."""
        worker = self._idle.pop() if self._idle else self._new()
        worker.pipe.send(job)
        return worker

    def _new(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._main, theirs), daemon=True)
        process.start()
        theirs.close()  # or the end of the process would not close it
        return _Worker(process, ours)

    def ended(self, handle: _Worker) -> tuple[int, str] | None:
        """Return exit code and reason, or None while it runs."""
        if not handle.pipe.poll():
            return None
        try:
            code = handle.pipe.recv()
        except EOFError:
            handle.process.join()
            return child.exit_of(handle.process.exitcode)
        self._idle.append(handle)
        return code, ""

    def end(self, handle: _Worker, force: bool) -> None:
        """Send SIGTERM, or SIGKILL."""
        if force:
            handle.process.kill()
        else:
            handle.process.terminate()

    def close(self) -> None:
        """End the processes."""
        for worker in self._idle:
            worker.pipe.close()
            worker.process.join()
        self._idle = []


def _serve(main: Callable[[Sequence[str]], int], pipe: Connection) -> None:
    """Run job after job, what each prints going to its log, until the pipe is closed."""
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        code = main(job.command)
        sys.stdout.flush()
        pipe.send(code)


def faults_of(cell: Cell, study: Path) -> list[str]:
    """Return what is wrong with a cell that has run to its end: hooks that did not fire."""
    receipts = read_lines(study / cell.folder / "receipts.jsonl")
    fired = {row["method"] for row in receipts}
    listed = dict.fromkeys(row["method"] for row in cell.config.hooks)
    return [f"{method} did not fire" for method in listed if method not in fired]


def unmeasured(cells: Sequence[Cell], study: Path) -> list[str]:
    """Return the metrics that cells list and no cell that lists them has measured."""
    listed: dict[str, bool] = {}
    for cell in cells:
        if cell.config.metrics.every is None:
            continue
        keys = {key for row in read_lines(study / cell.folder / "metrics.jsonl") for key in row}
        measured = {key.split("/")[1] for key in keys if key.startswith("metric/")}
        for name in cell.config.metrics.names:
            listed[name] = listed.get(name, False) or name in measured
    methods = {row["method"] for cell in cells for row in (*cell.config.layers, *cell.config.hooks)}
    return [
        name
        for name, found in listed.items()
        if not found and _OF_ROWS.get(name) in (None, *methods)
    ]
