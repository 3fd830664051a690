"""The progress of a study: a row for the whole and one per running cell.

Where there is no terminal, each event is a line too. Cells are processes of their own: what they
have done is read from the last line of their metrics.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import TaskID

from rlplast.cli.live import Rows
from rlplast.run.read import last_line
from rlplast.run.show import share_done
from rlplast.study.plan import Cell, weights
from rlplast.study.watch import Progress

__all__ = ["StudyProgress", "study_progress"]


class StudyProgress(Rows):
    """The rows of a study; `observe` gets its progress."""

    def __init__(self, root: Path, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now, bar=10)
        self._root = root
        self._whole = self.add_task("study", total=None)
        self.details = ["starting the first cells"]
        self._rows: dict[str, TaskID] = {}  # of a running cell
        self._weights: dict[str, float] = {}  # which may take seconds

    def observe(self, progress: Progress) -> None:
        """Read how far the running cells are."""
        cells = {cell.key: cell for cell in progress.cells}
        weight = self._weights = self._weights or weights(progress.cells)
        for key in self._rows.keys() - progress.running:
            self.remove_task(self._rows.pop(key))
        failed = {failure.cell.key for failure in progress.failures}
        done = sum(weight[key] for key in progress.done)
        done += sum(weight[key] * self._cell(cells[key]) for key in progress.running)
        total = sum(own for key, own in weight.items() if key not in failed)
        share = min(1.0, done / total) if total > 0 else 1.0
        self.move(self._whole, share, 1.0, "")
        self.details = [
            f"{len(progress.done)} of {len(cells)} done",
            *([f"{len(failed)} failed"] if failed else []),
            f"{len(progress.running)} running",
            f"{len(cells) - len(progress.done) - len(failed) - len(progress.running)} waiting",
        ]

    def _cell(self, cell: Cell) -> float:
        """Bring the row of a running cell up to date; returns how much of it is done."""
        if cell.key not in self._rows:
            self._rows[cell.key] = self.add_task(cell.name, total=None, waiting="starting")
        row, total = last_line(self._root / cell.folder / "metrics.jsonl"), cell.config.total_time()
        if not row:
            return 0.0
        share = share_done(row, cell.starts, cell.stops or (total,))
        began = {time.unit: time.value for time in cell.starts}.get(total.unit, 0)
        counted = (row.get(total.unit, 0) - began) / share if share else 0.0
        self.move(self._rows[cell.key], share, 1.0, total.unit, counted)
        return share


@contextmanager
def study_progress(root: Path) -> Iterator[Callable[[Progress], None]]:
    """Show a study's progress while the block runs; yields an observer."""
    with StudyProgress(root).shown() as watched:

        def observe(progress: Progress) -> None:
            watched.observe(progress)
            if progress.event:
                watched.say(f"[{len(progress.done)}/{len(progress.cells)}] {progress.event}")

        yield observe
