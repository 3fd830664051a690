"""A study's process watches: what workers have done, it reads from the folder."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlplast.core.errors import Interrupted, RlplastError
from rlplast.study.claims import Attempt
from rlplast.study.executors import Executor
from rlplast.study.folder import log_file
from rlplast.study.plan import Cell
from rlplast.study.state import StudyState

__all__ = ["Failure", "Progress", "watch"]

_PAUSE = 0.2  # seconds between two looks
_QUIET = 300.0  # seconds without any worker after which that is said
_STARTS = 5  # of workers that end one after the other without a cell in between


@dataclass(frozen=True)
class Failure:
    """A cell that did not come to its end: why, and where its output is."""

    cell: Cell
    reason: str
    log: Path | None


@dataclass
class Progress:
    """How far a study is; observers get it up to five times a second.

    ``done`` and ``running`` are keys of cells; done are also those that are no longer needed.
    ``event`` is what has just happened, in words; empty if nothing.
    """

    cells: Sequence[Cell]
    done: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    event: str = ""


def watch(
    root: Path,
    cells: Sequence[Cell],
    executor: Executor,
    observer: Callable[[Progress], object] = lambda progress: None,
) -> list[Failure]:
    """Start workers, and watch until no cell is left to run.

    Returns the cells that failed for good, or could not be run for want of their prefix. `observer`
    gets the progress at every event, and up to five times a second.

    Raises:
        RlplastError: if workers cannot be started, or end without a reason.
        Interrupted: after KeyboardInterrupt, once the running cells have saved.
    """
    state, progress = StudyState(root), Progress(cells)
    by_key = {cell.key: cell for cell in cells}
    starts, quiet, began = 0, time.monotonic(), False
    try:
        while True:
            ready = _move(progress, state, by_key)
            for own in state.ended:
                if own.cell in by_key and (event := _event(state, by_key[own.cell], own)):
                    observer(dataclasses.replace(progress, event=event))
            left = len(cells) - len(progress.done) - len(progress.failures)
            why = executor.ended() if began else ""
            starts = 0 if progress.running or state.ended else starts
            if ready and why is not None:
                starts, began = starts + 1, True
                if starts > _STARTS:
                    raise RlplastError(f"workers end before any cell does: {why or 'killed'}")
                executor.start(root, left)
            event = ""
            if progress.running or not left:
                quiet = time.monotonic()
            elif time.monotonic() - quiet > _QUIET:
                quiet = time.monotonic()
                event = f"no cell has run for {_QUIET / 60:.0f} minutes"
            observer(dataclasses.replace(progress, event=event))
            if not left:
                return progress.failures
            time.sleep(_PAUSE)
            state.look()
    except KeyboardInterrupt as interruption:
        raise Interrupted(_farewell(root, executor)) from interruption
    finally:
        executor.stop()


def _farewell(root: Path, executor: Executor) -> str:
    if executor.stays:
        return f"workers go on with {root}: the same command watches them again, and adds others"
    executor.stop()
    return f"stopped: the same command goes on with {root} from its cells' newest checkpoints"


def _move(progress: Progress, state: StudyState, cells: Mapping[str, Cell]) -> bool:
    """Bring the progress up to date; return whether a worker would find something to do."""
    fates = {row["key"]: fate for row, fate in state.fates() if row["key"] in cells}
    progress.done = {key for key, fate in fates.items() if fate == "done"}
    progress.running = {key for key, fate in fates.items() if fate == "held"}
    progress.failures = [
        Failure(cells[key], *why) for key, fate in fates.items() if (why := _why(state, key, fate))
    ]
    return "free" in fates.values()


def _why(state: StudyState, key: str, fate: str) -> tuple[str, Path | None] | None:
    """Return why a cell failed, and its log; None if it did not."""
    if fate == "failed":
        return state.claims.reason(key), state.root / log_file(state.cells[key]["folder"])
    if fate == "skipped":
        return f"not run: its prefix {state.cells[state.cells[key]['parent']]['name']} failed", None
    return None


def _event(state: StudyState, cell: Cell, attempt: Attempt) -> str:
    """Say in words how an attempt ended; nothing if it was only interrupted."""
    if attempt.end == "failed":
        last = state.claims.attempts[cell.key][-1] is attempt
        again = "" if last and state.claims.states[cell.key] == "failed" else ", trying again"
        return f"failed{again}: {cell.name} ({attempt.row.get('reason')})"
    return f"done: {cell.name}" if attempt.end == "done" else ""
