"""The scheduler: runs the cells of a study in order of their prefixes, through an executor.

A cell that failed is tried again as often as asked; what goes on from a prefix that failed for
good is not run, and everything else is.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlplast.study.executors import Executor, Job, Outcome
from rlplast.study.folder import StudyFolder, is_done, is_started
from rlplast.study.plan import Cell

__all__ = ["Failure", "Progress", "Stopped", "pending", "run_cells"]

MESSAGE = "rlplast: "  # begins the last line of a cell that said what was wrong
CONFIG_ERROR = 2  # trying again would say the same


@dataclass(frozen=True)
class Failure:
    """A cell that did not come to its end: why, and where its output is."""

    cell: Cell
    reason: str
    log: Path | None


@dataclass
class Stopped(Exception):
    """Raised when Ctrl-C ended a study; so many running cells have saved what they could."""

    cells: int


@dataclass
class Progress:
    """Where a study is; told to an observer about twice a second.

    Attributes:
        cells: all of them.
        done: keys of those that are done, and of prefixes that are no longer needed.
        running: keys of those that run, with the moment they were started.
        failures: those that failed for good.
        event: what has just happened, in words; empty if nothing.
    """

    cells: Sequence[Cell]
    done: set[str]
    running: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    event: str = ""


def pending(cells: Sequence[Cell], root: Path) -> list[Cell]:
    """Return the cells that have something left to do, in order.

    A prefix is needed only by cells that have not begun.
    """
    needed: set[str] = set()
    left = []
    for cell in reversed(cells):  # a prefix comes before what goes on from it
        folder = root / cell.folder
        if is_done(folder) or (cell.arm is None and cell.key not in needed):
            continue
        left.append(cell)
        if cell.parent is not None and not is_started(folder):
            needed.add(cell.parent)
    return left[::-1]


def run_cells(
    cells: Sequence[Cell],
    folder: StudyFolder,
    executor: Executor,
    command: Callable[[Cell], tuple[str, ...]],
    retries: int = 1,
    observer: Callable[[Progress], None] = lambda progress: None,
) -> list[Failure]:
    """Run all cells that are not done.

    Args:
        cells: the plan; prefixes before what goes on from them.
        folder: the study's folder.
        executor: runs commands.
        command: the command that runs a cell, and goes on with it if it was begun.
        retries: how often a cell that failed is started again.
        observer: told of every event, and about twice a second.

    Returns:
        The cells that failed for good, or could not be run for want of their prefix.

    Raises:
        Stopped: after KeyboardInterrupt, once the running cells have ended.
    """
    waiting = pending(cells, folder.path)
    progress = Progress(cells, {c.key for c in cells} - {c.key for c in waiting})
    attempts: Counter[str] = Counter()
    jobs: dict[Job, Cell] = {}

    def tell(event: str = "") -> None:
        progress.event = event
        observer(progress)

    def start(cell: Cell) -> None:
        job = Job(cell.name, command(cell), folder.log(cell), cell.config.threads)
        jobs[job] = cell
        attempts[cell.key] += 1
        progress.running[cell.key] = time.monotonic()
        folder.note(cell, "started", attempt=attempts[cell.key])
        executor.submit(job)

    def end(outcome: Outcome) -> None:
        cell = jobs[outcome.job]
        seconds = time.monotonic() - progress.running.pop(cell.key)
        about = {"attempt": attempts[cell.key], "seconds": round(seconds, 3), "exit": outcome.exit}
        if outcome.exit == 0:
            folder.note(cell, "done", **about)
            progress.done.add(cell.key)
            tell(f"done: {cell.name}")
            return
        about["reason"] = reason = outcome.reason or _reason(outcome.exit, outcome.job.log)
        if outcome.exit != CONFIG_ERROR and attempts[cell.key] <= retries:
            folder.note(cell, "retried", **about)
            waiting.insert(0, cell)
            tell(f"failed, trying again: {cell.name} ({reason})")
            return
        folder.note(cell, "failed", **about)
        progress.failures.append(Failure(cell, reason, outcome.job.log))
        tell(f"failed: {cell.name} ({reason})")
        _drop_heirs(cell, waiting, progress, folder)

    try:
        while waiting or progress.running:
            ready = [c for c in waiting if c.parent is None or c.parent in progress.done]
            for cell in ready[: executor.slots - len(progress.running)]:
                waiting.remove(cell)
                start(cell)
            for outcome in executor.wait(0.5):
                end(outcome)
            tell()
    except KeyboardInterrupt as interruption:
        stopped = executor.stop()
        for outcome in stopped:
            event = "stopped" if outcome.exit else "done"
            folder.note(jobs[outcome.job], event, exit=outcome.exit)
        raise Stopped(len(stopped)) from interruption
    return progress.failures


def _reason(code: int, log: Path) -> str:
    """Return why a cell failed: its own message, or its exit code and the last line it said."""
    text = log.read_text(errors="replace") if log.exists() else ""
    said = ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1]
    if said.startswith(MESSAGE):
        return said.removeprefix(MESSAGE)
    silent = not said or said.startswith("=== attempt ")
    return f"exit code {code}" + ("" if silent else f", after {said!r}")


def _drop_heirs(failed: Cell, waiting: list[Cell], progress: Progress, folder: StudyFolder) -> None:
    """Give up the cells that go on from a prefix that failed, and those that go on from them."""
    lost = {failed.key}
    for cell in list(waiting):
        if cell.parent in lost:
            lost.add(cell.key)
            waiting.remove(cell)
            reason = f"not run: its prefix {failed.name} failed"
            folder.note(cell, "skipped", reason=reason)
            progress.failures.append(Failure(cell, reason, None))
