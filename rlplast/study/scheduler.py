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

MESSAGE = "rlplast: "  # begins the last line of a cell that names what was wrong
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
    """How far a study is; observers get it about twice a second.

    Attributes:
        cells: all of them.
        done: keys of those that are done, and of prefixes that nothing needs any more.
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
    observer: Callable[[Progress], object] = lambda progress: None,
) -> list[Failure]:
    """Run all cells that are not done.

    Args:
        cells: the plan; prefixes before what goes on from them.
        folder: the study's folder.
        executor: runs commands.
        command: the command that runs a cell, and goes on with it if it was begun.
        retries: how often a cell that failed is started again.
        observer: called with the progress at every event, and about twice a second.

    Returns:
        The cells that failed for good, or could not be run for want of their prefix.

    Raises:
        Stopped: after KeyboardInterrupt, once the running cells have ended.
    """
    waiting = pending(cells, folder.path)
    progress = Progress(cells, {c.key for c in cells} - {c.key for c in waiting})
    run = _Run(folder, executor, command, retries, observer, waiting, progress)
    try:
        run.notify()
        while run.waiting or progress.running:
            ready = [c for c in run.waiting if c.parent is None or c.parent in progress.done]
            for cell in ready[: executor.slots - len(progress.running)]:
                run.waiting.remove(cell)
                run.start(cell)
            for outcome in executor.wait(0.5):
                run.end(outcome)
            run.notify(executor.news())
    except KeyboardInterrupt as interruption:
        stopped = executor.stop()
        for outcome in stopped:
            event = "stopped" if outcome.exit else "done"
            folder.note(run.jobs[outcome.job], event, exit=outcome.exit)
        raise Stopped(len(stopped)) from interruption
    return progress.failures


@dataclass
class _Run:
    """The state of `run_cells`: what waits, what runs, what has become of the others."""

    folder: StudyFolder
    executor: Executor
    command: Callable[[Cell], tuple[str, ...]]
    retries: int
    observer: Callable[[Progress], object]
    waiting: list[Cell]
    progress: Progress
    attempts: Counter[str] = field(default_factory=Counter)
    jobs: dict[Job, Cell] = field(default_factory=dict)

    def notify(self, event: str = "") -> None:
        self.progress.event = event
        self.observer(self.progress)

    def start(self, cell: Cell) -> None:
        threads, processes = cell.config.threads, self.executor.processes
        job = Job(cell.name, self.command(cell), self.folder.log(cell), threads, processes)
        self.jobs[job] = cell
        self.attempts[cell.key] += 1
        self.progress.running[cell.key] = time.monotonic()
        self.folder.note(cell, "started", attempt=self.attempts[cell.key])
        self.executor.submit(job)

    def end(self, outcome: Outcome) -> None:
        cell, progress = self.jobs[outcome.job], self.progress
        attempt = self.attempts[cell.key]
        seconds = time.monotonic() - progress.running.pop(cell.key)
        about = {"attempt": attempt, "seconds": round(seconds, 3), "exit": outcome.exit}
        if outcome.exit == 0:
            self.folder.note(cell, "done", **about)
            progress.done.add(cell.key)
            self.notify(f"done: {cell.name}")
            return
        about["reason"] = reason = outcome.reason or _reason(outcome.exit, outcome.job.log)
        if outcome.exit != CONFIG_ERROR and attempt <= self.retries:
            self.folder.note(cell, "retried", **about)
            self.waiting.insert(0, cell)
            self.notify(f"failed, trying again: {cell.name} ({reason})")
            return
        self.folder.note(cell, "failed", **about)
        progress.failures.append(Failure(cell, reason, outcome.job.log))
        self.notify(f"failed: {cell.name} ({reason})")
        _drop_dependents(cell, self.waiting, progress, self.folder)


def _reason(code: int, log: Path) -> str:
    """Return why a cell failed: its own message, or its exit code and the last line of its log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    last = ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1]
    if last.startswith(MESSAGE):
        return last.removeprefix(MESSAGE)
    silent = not last or last.startswith("=== attempt ")
    return f"exit code {code}" + ("" if silent else f", after {last!r}")


def _drop_dependents(
    failed: Cell, waiting: list[Cell], progress: Progress, folder: StudyFolder
) -> None:
    """Give up the cells that go on from a prefix that failed, and those that go on from them."""
    lost = {failed.key}
    for cell in list(waiting):
        if cell.parent in lost:
            lost.add(cell.key)
            waiting.remove(cell)
            reason = f"not run: its prefix {failed.name} failed"
            folder.note(cell, "skipped", reason=reason)
            progress.failures.append(Failure(cell, reason, None))
