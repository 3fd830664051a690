"""What has become of a study's cells, for those who work on it and those who watch."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlplast.study.claims import Attempt, Claims
from rlplast.study.folder import is_done, is_started, read_study

__all__ = ["Row", "StudyState", "pending"]

Row = dict[str, Any]  # a cell as study.json has it


def pending(rows: Sequence[Row], root: Path) -> list[Row]:
    """Return the cells with something left to do, in order: prefixes only for cells not begun."""
    needed: set[str] = set()
    left = []
    for row in reversed(rows):  # a prefix comes before what goes on from it
        folder = root / row["folder"]
        if is_done(folder) or (row["kind"] == "prefix" and row["key"] not in needed):
            continue
        left.append(row)
        if row["parent"] is not None and not is_started(folder):
            needed.add(row["parent"])
    return left[::-1]


class StudyState:
    """A study's cells and how they stand, as of the last `look`; errors as of `read_study`.

    Attributes:
        study: what study.json says.
        rows: the cells in the order in which workers take them: the longest way to go first.
        cells: the same by key.
        open: those that are not done.
        claims: of all cells.
        ended: attempts that ended between the last look and the one before it; none at first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._written: tuple[int, ...] = ()
        self._read()
        self.claims = Claims(root, self.study.get("retries", 1))
        self.claims.look()
        self.ended: list[Attempt] = []
        self._sift()

    def look(self) -> None:
        """Learn what is new."""
        again = self._stamp() != self._written
        if again:
            self._read()
            self.claims.retries = self.study.get("retries", 1)
        self.ended = self.claims.look()
        if again or self.ended:
            self._sift()

    def _sift(self) -> None:
        states = self.claims.states
        self.open = [
            r for r in self.rows if r["key"] in self._left and states.get(r["key"]) != "done"
        ]

    def fates(self, rows: Sequence[Row] | None = None) -> Iterator[tuple[Row, str]]:
        """Yield each cell, or those of `open`, with its fate, in order.

        It is done, failed (for good), skipped (for want of its prefix), held (by a worker), free
        (to be taken) or waiting (for its prefix).
        """
        found: dict[str, str] = {}
        states, left = self.claims.states, self._left
        for row in self.rows if rows is None else rows:
            key, parent = row["key"], row["parent"]
            fate = states.get(key, "free") if key in left else "done"
            if fate == "free" and parent is not None and left[key]:
                before = found.get(parent, "done")
                if before in ("failed", "skipped"):
                    fate = "skipped"
                elif before != "done":
                    fate = "waiting"
            found[key] = fate
            yield row, fate

    def _read(self) -> None:
        self._written = self._stamp()
        self.study = read_study(self.root)
        rows = self.study["cells"]
        below: dict[str, float] = defaultdict(float)
        ways = {}
        for row in reversed(rows):
            ways[row["key"]] = way = row.get("weight", 0.0) + below[row["key"]]
            if row["parent"] is not None:
                below[row["parent"]] = max(below[row["parent"]], way)
        self.rows = sorted(rows, key=lambda row: -ways[row["key"]])
        self.cells = {row["key"]: row for row in rows}
        # What is left → whether it needs its prefix.
        self._left = {
            row["key"]: not is_started(self.root / row["folder"])
            for row in pending(rows, self.root)
        }

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.root / "study.json")
        except FileNotFoundError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino
