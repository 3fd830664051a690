"""The progress of a study: a line for the whole and one per running cell.

On a terminal they are redrawn, none is longer than a row, and there are no more than fit. Elsewhere
each event is a line, and every 30 s one says how far the running cells are. Cells are processes of
their own: what they have done is read from the last line of their metrics.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.cells import cell_len

from rlplast.cli.lines import GAP, Pace, bar, clock_time, fitted, middle, rate
from rlplast.cli.live import shown
from rlplast.run.read import last_line
from rlplast.run.show import share_done
from rlplast.study.plan import Cell, weights
from rlplast.study.scheduler import Progress

__all__ = [
    "CellReading",
    "StudyProgress",
    "StudyReading",
    "plain_line",
    "study_progress",
    "terminal_lines",
]

_STARTING = "study: starting the first cells"
_NAMED = 8  # running cells in a plain line
_WITH_RATES = 80  # columns


@dataclasses.dataclass(frozen=True)
class CellReading:
    """Where a running cell is.

    Attributes:
        share: how much of it is done, in [0, 1]; None before the first line of its metrics.
        rate: what it does per second, with the unit; empty if not known yet.
        left: seconds until its end; None if not known.
    """

    name: str
    share: float | None
    rate: str = ""
    left: float | None = None

    @property
    def said(self) -> tuple[str, str]:
        """Share and time left, in words."""
        share = "starting" if self.share is None else f"{self.share:.0%}"
        return share, "" if self.left is None else f"{clock_time(self.left)} left"


@dataclasses.dataclass(frozen=True)
class StudyReading:
    """Where a study is: how many cells are in which state, and its share of the training."""

    share: float
    done: int
    failed: int
    left: int
    seconds_left: float | None
    running: tuple[CellReading, ...]

    @property
    def said(self) -> list[str]:
        """The numbers in words, the most important one first."""
        failed = [f"{self.failed} failed"] if self.failed else []
        ahead = [] if self.seconds_left is None else [f"{clock_time(self.seconds_left)} left"]
        return [f"{self.done} of {self.done + self.failed + self.left} done", *failed, *ahead]


def terminal_lines(
    reading: StudyReading | None, columns: int, rows: int, plain: bool = False
) -> list[str]:
    """Return the lines of a terminal: the whole, then the running cells that have room.

    Args:
        reading: what is said.
        columns: no line has more.
        rows: there are no more lines.
        plain: whether bars are of ASCII letters.
    """
    if reading is None:
        return [middle(_STARTING, columns)]
    words = [f"{reading.share:.0%}", *reading.said, f"{reading.left} to do"]
    said = fitted([[word] for word in words], columns - len("study ") - 10)
    room = columns - len("study ") - len(GAP.join(["", *said]))
    head = GAP.join([f"study {bar(reading.share, min(30, max(0, room)), plain)}", *said])
    cells = reading.running
    if len(cells) <= rows - 1:
        return [middle(head, columns), *_table(cells, columns)]
    fit = cells[: max(0, rows - 2)]
    lines = [middle(head, columns), *_table(fit, columns)]
    return lines + [f"  and {len(cells) - len(fit)} more"] * (rows > 1)


def _table(cells: Sequence[CellReading], columns: int) -> list[str]:
    """Return a line for each cell, names and figures below each other."""
    figures = [(*cell.said, cell.rate if columns >= _WITH_RATES else "") for cell in cells]
    widths = [max((len(row[i]) for row in figures), default=0) for i in range(3)]
    ends = []
    for row in figures:
        ends.append("".join(f"{GAP}{t:>{w}}" for t, w in zip(row, widths, strict=True) if w))
    room = columns - len(GAP) - max(map(len, ends), default=0)
    names = [middle(cell.name, max(3, room)) for cell in cells]
    widest = max(map(cell_len, names), default=0)
    lines = [
        f"{GAP}{name}{' ' * (widest - cell_len(name))}{end}"
        for name, end in zip(names, ends, strict=True)
    ]
    return [middle(line, columns) for line in lines]


def plain_line(reading: StudyReading | None) -> str:
    """Return the line that says the same where there is no terminal."""
    if reading is None:
        return _STARTING
    parts = [", ".join(["study: " + reading.said[0], *reading.said[1:], f"{reading.left} to do"])]
    for cell in reading.running[:_NAMED]:
        share, left = cell.said
        parts.append(" ".join([cell.name, share, *([f"({left})"] if left else [])]))
    more = len(reading.running) - _NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


class StudyProgress:
    """Watches a study: `observe` is told of it, `reading` may be called by another thread.

    Args:
        root: the study's folder.
        now: a clock, in seconds.
    """

    def __init__(self, root: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._root, self._now = root, now
        self._whole = Pace()
        self._paces: dict[str, tuple[Pace, Pace]] = {}  # of a cell: of its share, of its count
        self._weights: dict[str, float] = {}
        self.reading: StudyReading | None = None  # until the first cells have begun

    def observe(self, progress: Progress) -> None:
        """Read how far the running cells are."""
        cells, now = {cell.key: cell for cell in progress.cells}, self._now()
        self._weights = self._weights or weights(progress.cells)
        self._paces = {key: pace for key, pace in self._paces.items() if key in progress.running}
        running = {key: self._cell(cells[key], now) for key in progress.running}
        failed = {failure.cell.key for failure in progress.failures}
        done = sum(self._weights[key] for key in progress.done)
        done += sum(self._weights[key] * (cell.share or 0.0) for key, cell in running.items())
        total = sum(weight for key, weight in self._weights.items() if key not in failed)
        self._whole.add(now, done)
        self.reading = StudyReading(
            share=min(1.0, done / total) if total > 0 else 1.0,
            done=len(progress.done),
            failed=len(failed),
            left=len(cells) - len(progress.done) - len(failed),
            seconds_left=self._whole.left(now, total),
            running=tuple(running.values()),
        )

    def _cell(self, cell: Cell, now: float) -> CellReading:
        row, total = last_line(self._root / cell.folder / "metrics.jsonl"), cell.config.total_time()
        if not row:
            return CellReading(cell.name, None)
        share = share_done(row, cell.starts, cell.stops or (total,))
        shares, counts = self._paces.setdefault(cell.key, (Pace(), Pace()))
        shares.add(now, share)
        counts.add(now, row.get(total.unit, 0))
        speed = counts.rate()
        said = "" if speed is None else rate(speed, total.unit)
        return CellReading(cell.name, share, said, shares.left(now, 1.0))


@contextmanager
def study_progress(
    root: Path, now: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Progress], None]]:
    """Show a study's progress while the block runs; yields the scheduler's observer.

    Args:
        root: the study's folder.
        now: a clock, in seconds.
    """
    watched = StudyProgress(root, now)

    def screen(columns: int, rows: int, ascii_only: bool) -> list[str]:
        return terminal_lines(watched.reading, columns, rows, ascii_only)

    with shown(screen, lambda: plain_line(watched.reading), now=now) as say:

        def observe(progress: Progress) -> None:
            watched.observe(progress)
            if progress.event:
                say(f"[{len(progress.done)}/{len(progress.cells)}] {progress.event}")

        yield observe
