"""The trials of a study's searches as cells: what the scheduler runs, watches and stops.

A trial has a cell per seed. Its evaluations are read from the cells' metrics.jsonl in the order of
seeds, those of a seed once the seeds before it are done; so whether it is stopped does not depend
on how fast anything runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.run.read import read_lines
from rlplast.study.folder import is_done
from rlplast.study.plan import Cell
from rlplast.study.search import Search
from rlplast.study.search_config import SCORES

__all__ = ["Trials"]

_STRIDE = 1_000_000  # numbers of evaluations between two seeds


@dataclass
class _Trial:
    search: Search
    number: int
    cells: list[Cell]
    values: dict[int, float] = field(default_factory=dict)  # of evaluations so far


@dataclass
class Trials:
    """Supplies the scheduler with trials, as many at once as there is room for.

    Attributes:
        searches: of the study.
        root: the study's folder.
        cells: of the study's other arms; a trial that is equal to one, or to an earlier trial, is
            that one.
        announce: called with all cells of trials so far, before the last of them run.
    """

    searches: Sequence[Search]
    root: Path
    cells: Sequence[Cell] = ()
    announce: Callable[[list[Cell]], object] = lambda cells: None
    _running: list[_Trial] = field(default_factory=list)
    _begun: bool = False
    _unwanted: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._first = {cell.key: cell for cell in self.cells}
        for search in self.searches:
            for number in search.begun():
                self._cells(search, number)

    def _cells(self, search: Search, number: int) -> list[Cell]:
        return [self._first.setdefault(cell.key, cell) for cell in search.cells(number)]

    def known(self) -> list[Cell]:
        """Return the cells of all trials that have begun, but for those of other arms."""
        others = {cell.key for cell in self.cells}
        return [cell for key, cell in self._first.items() if key not in others]

    def finished(self) -> bool:
        """Whether all trials are over."""
        return all(len(search.over()) >= search.config.trials for search in self.searches)

    def next(self, room: int) -> list[Cell]:
        """Look at the trials that run, and begin others if there is room."""
        added: list[Cell] = []
        if not self._begun:  # those that an interruption left
            self._begun = True
            for search in self.searches:
                for number in sorted(set(search.begun()) - set(search.over())):
                    added += self._begin(search, number)
        self._running = [trial for trial in self._running if not self._over(trial)]
        while len(added) < room and (begun := self._ask()) is not None:
            added += begun
            self._running = [trial for trial in self._running if not self._over(trial)]
        return added

    def unwanted(self) -> set[str]:
        """Return the keys of cells of trials that were stopped or failed."""
        return self._unwanted

    def lost(self, cell: Cell) -> None:
        """Note that a cell has failed for good."""
        self._lost.add(cell.key)

    def _ask(self) -> list[Cell] | None:
        """Begin a trial of the first search that wants one; None if none does."""
        for search in self.searches:
            number = search.ask()
            if number is not None:
                cells = self._begin(search, number)
                self.announce(self.known())
                return cells
        return None

    def _begin(self, search: Search, number: int) -> list[Cell]:
        """Begin a trial; return its cells that nobody runs and that are not done."""
        trial = _Trial(search, number, self._cells(search, number))
        taken = self._wanted(trial)
        self._running.append(trial)
        self._unwanted -= {cell.key for cell in trial.cells}  # of an equal trial before
        left = (cell for cell in trial.cells if not is_done(self._folder(cell)))
        return [cell for cell in left if cell.key not in taken]

    def _wanted(self, trial: _Trial) -> set[str]:
        """Return the keys of cells that others than a trial run, or will."""
        others = (other for other in self._running if other is not trial)
        return {cell.key for cell in (*self.cells, *(c for o in others for c in o.cells))}

    def _over(self, trial: _Trial) -> bool:
        """Whether a trial is over; its search gets the result."""
        state, value = self._judged(trial)
        if state is None:
            return False
        trial.search.tell(trial.number, state, value, trial.values)
        if state != "COMPLETE":
            self._unwanted |= {cell.key for cell in trial.cells} - self._wanted(trial)
        return True

    def _judged(self, trial: _Trial) -> tuple[str | None, float | None]:
        """Return how a trial ended, and its value; None while it runs."""
        last: list[float] = []
        for place, cell in enumerate(trial.cells):
            done = is_done(
                self._folder(cell)
            )  # asked before its lines are read: they are all there
            values = self._evaluations(trial.search, cell)
            for number, (value, ended) in enumerate(values):
                step = place * _STRIDE + number
                if step in trial.values or not math.isfinite(value):
                    continue
                trial.values[step] = value
                if not ended and trial.search.prunes(trial.number, trial.values):
                    return "PRUNED", value
            if not done:
                return ("FAIL", None) if cell.key in self._lost else (None, None)
            if not values:
                raise self._never_measured(trial.search, cell)
            if not math.isfinite(values[-1][0]):
                return "FAIL", None
            last.append(values[-1][0])
        return "COMPLETE", sum(last) / len(last)

    def _evaluations(self, search: Search, cell: Cell) -> list[tuple[float, bool]]:
        """Return the values of a cell's evaluations, and whether each was at the run's end."""
        path, end = self._folder(cell) / "metrics.jsonl", cell.config.total_time()
        rows = read_lines(path) if path.is_file() else []
        metric = search.config.metric
        return [
            (_number(row, metric), row.get(end.unit, 0) >= end.value)
            for row in rows
            if metric in row
        ]

    def _never_measured(self, search: Search, cell: Cell) -> ConfigError:
        metric = search.config.metric
        rows = read_lines(self._folder(cell) / "metrics.jsonl")
        names = sorted({key for row in rows for key in row if key.startswith(SCORES)})
        return ConfigError(
            f"search.metric = {metric!r}: evaluations of {cell.name} have no such value: "
            f"{did_you_mean(metric, names)}"
        )

    def _folder(self, cell: Cell) -> Path:
        return self.root / cell.folder


def _number(row: Mapping[str, float | None], key: str) -> float:
    value = row[key]
    return math.nan if value is None else value
