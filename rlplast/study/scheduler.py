"""The scheduler: runs the cells of a study in order of their prefixes, through an executor.

A cell that failed is tried again as often as asked; what goes on from a prefix that failed for
good is not run, and everything else is.
"""

import time
from collections.abc import Callable, Mapping, Sequence
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


class Stopped(Exception):
    """Raised when Ctrl-C ended a study: its running cells have saved what they could.

    Attributes:
        cells: how many were running.
    """

    def __init__(self, cells: int) -> None:
        super().__init__(cells)
        self.cells = cells


@dataclass
class Progress:
    """Where a study is; told to an observer about twice a second.

    Attributes:
        cells: all of them.
        done: keys of those that are done, or whose prefix is no longer needed.
        running: those that run, with the moment they were started.
        failures: those that failed for good.
        event: what has just happened, in words; empty if nothing.
    """

    cells: Sequence[Cell]
    done: set[str] = field(default_factory=set)
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
    attempts: dict[str, int] = {}
    by_log: dict[Path, Cell] = {}  # two prefixes may have one name

    def tell(event: str = "") -> None:
        progress.event = event
        observer(progress)

    def start(cell: Cell) -> None:
        attempts[cell.key] = attempts.get(cell.key, 0) + 1
        by_log[folder.log(cell)] = cell
        progress.running[cell.key] = time.monotonic()
        folder.note(cell, "started", attempt=attempts[cell.key])
        threads = cell.config.threads
        executor.submit(Job(cell.name, command(cell), folder.log(cell), threads))

    def end(outcome: Outcome) -> None:
        cell = by_log[outcome.job.log]
        seconds = time.monotonic() - progress.running.pop(cell.key)
        about = {"attempt": attempts[cell.key], "seconds": round(seconds, 3), "exit": outcome.exit}
        if outcome.exit == 0:
            folder.note(cell, "done", **about)
            progress.done.add(cell.key)
            tell(f"done: {cell.name}")
            return
        reason = outcome.reason or _reason(outcome.exit, folder.log(cell))
        if outcome.exit != CONFIG_ERROR and attempts[cell.key] <= retries:
            folder.note(cell, "retried", reason=reason, **about)
            waiting.insert(0, cell)
            tell(f"failed, trying again: {cell.name} ({reason})")
            return
        folder.note(cell, "failed", reason=reason, **about)
        progress.failures.append(Failure(cell, reason, folder.log(cell)))
        tell(f"failed: {cell.name} ({reason})")
        _drop_heirs(cell, waiting, progress, folder)

    try:
        while waiting or progress.running:
            for cell in list(waiting):
                if len(progress.running) >= executor.slots:
                    break
                if cell.parent is None or cell.parent in progress.done:
                    waiting.remove(cell)
                    start(cell)
            for outcome in executor.wait(0.5):
                end(outcome)
            tell()
    except KeyboardInterrupt as interruption:
        raise Stopped(_stop(executor, folder, by_log)) from interruption
    return progress.failures


def _stop(executor: Executor, folder: StudyFolder, by_log: Mapping[Path, Cell]) -> int:
    """Have the running cells save and end; returns how many there were."""
    stopped = executor.stop()
    for outcome in stopped:
        event = "done" if outcome.exit == 0 else "stopped"
        folder.note(by_log[outcome.job.log], event, exit=outcome.exit)
    return len(stopped)


def _reason(code: int, log: Path) -> str:
    """Return why a cell failed: its own message, or its exit code and the last line it said."""
    said = last_words(log)
    if said.startswith(MESSAGE):
        return said.removeprefix(MESSAGE)
    return f"exit code {code}" + (f", after {said!r}" if said else "")


def last_words(log: Path) -> str:
    """Return the last line that the last attempt said; empty if there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said and not said[-1].startswith("=== attempt ") else ""


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
