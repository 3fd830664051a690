"""The progress of a study: a bar for the whole and one per running cell, or plain lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rlplast.run.read import last_line
from rlplast.study.plan import Cell
from rlplast.study.scheduler import Progress as StudyProgress

__all__ = ["done_share", "study_progress"]


def done_share(cell: Cell, root: Path) -> float:
    """Return how much of a cell is done, in [0, 1], by the last line of its metrics."""
    row = last_line(root / cell.folder / "metrics.jsonl")
    starts, stops = cell.starts, cell.stops or (cell.config.total_time(),)
    shares = []
    for stop in stops:
        start = next((t.value for t in starts if t.unit == stop.unit), 0.0)
        now = row.get(stop.unit, 0)
        shares.append((now - start) / max(stop.value - start, 1e-9))
    return min(1.0, max(0.0, *shares)) if shares else 0.0


@contextmanager
def study_progress(root: Path) -> Iterator[Callable[[StudyProgress], None]]:
    """Show a study's progress while the block runs; yields the scheduler's observer.

    Args:
        root: the study's folder.
    """
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),  # names may have brackets
        BarColumn(),
        TextColumn("{task.fields[words]}"),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    whole = bar.add_task("study", total=1.0, words="")
    tasks: dict[str, TaskID] = {}
    started, first = time.monotonic(), -1.0

    def observe(progress: StudyProgress) -> None:
        nonlocal first
        cells = {cell.key: cell for cell in progress.cells}
        shares = {key: done_share(cells[key], root) for key in progress.running}
        for key in set(tasks) - set(shares):
            bar.remove_task(tasks.pop(key))
        for key, share in shares.items():
            if key not in tasks:
                tasks[key] = bar.add_task(f"  {cells[key].name}", total=1.0, words="")
            bar.update(tasks[key], completed=share, words=f"{share:.0%}")
        done = (len(progress.done) + sum(shares.values())) / max(1, len(cells))
        first = done if first < 0 else first
        rate = (done - first) / max(time.monotonic() - started, 1e-9)
        left = f", about {(1 - done) / rate / 60:.0f} min left" if rate > 0 else ""
        failed = f", {len(progress.failures)} failed" if progress.failures else ""
        words = f"{len(progress.done)} of {len(cells)} cells{failed}{left}"
        bar.update(whole, completed=done, words=words)
        if progress.event:
            bar.console.print(progress.event, highlight=False, markup=False)

    with bar:
        yield observe


def _lines() -> Callable[[StudyProgress], None]:
    """Return an observer that says each event on a line."""

    def observe(progress: StudyProgress) -> None:
        if progress.event:
            count = f"[{len(progress.done)}/{len(progress.cells)}]"
            print(f"{count} {progress.event}", file=sys.stderr, flush=True)

    return observe
