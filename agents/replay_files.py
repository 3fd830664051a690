"""A replay memory on disk: every row is written once, and later saves share the files.

Rows never change once a segment holds them, so its name says what is in it, and nobody writes to a
file again. The headers of the `.npy` files are padded such that rows lie in a file as they do in
memory, modulo a page.
"""

import itertools
import os
import re
import struct
import threading
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlplast.core.errors import DamagedFile
from rlplast.core.fast import mapped_memory
from rlplast.training.files import fsync, link

__all__ = ["Rings", "Saving", "Segment", "load", "plan"]

_NAME = re.compile(r"env(\d{4,})-(frames|records)-(\d{12,})-(\d{12,})\.npy")
_SHORT = 8  # a last segment of less than 1/8 of the longest one is written anew with what follows
_NONE = np.iinfo(np.int64).max


class Segment(NamedTuple):
    """Rows `first` to `stop` of the array `kind` of one environment."""

    kind: str
    env: int
    first: int
    stop: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"env{self.env:04d}-{self.kind}-{self.first:012d}-{self.stop:012d}.npy"


class Rings(NamedTuple):
    """What is in memory: a ring of rows per environment, one after the other in each array."""

    arrays: Mapping[str, npt.NDArray[Any]]  # ``frames`` and ``records``, rows first
    size: int  # rows a ring holds
    written: Sequence[int]  # rows ever written, by environment

    def held(self) -> Iterable[Segment]:
        """Yield the rows that are in memory and final, of every array and environment."""
        for env, written in enumerate(self.written):
            first = max(written - self.size, 0)
            yield Segment("frames", env, first, written)
            # A row gets the rest of its record when the next one is added.
            yield Segment("records", env, first, max(written - 1, 0))

    def place(self, part: Segment) -> slice:
        """Return where in its array a part lies; it must not pass the ring's seam."""
        at = part.env * self.size + part.first % self.size
        return slice(at, at + part.stop - part.first)

    def header(self, part: Segment) -> bytes:
        """Return the header of a part's file, `.npy` 1.0, padded to the place of its rows."""
        array = self.arrays[part.kind]
        about = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": (part.stop - part.first, *array.shape[1:]),
        }
        text = repr(about).encode("latin1")
        before = len(np.lib.format.magic(1, 0)) + 2
        least = before + len(text) + 1
        length = least + (self.place(part).start * array[:1].nbytes - least) % mapped_memory.PAGE
        text = text.ljust(length - before - 1) + b"\n"
        return np.lib.format.magic(1, 0) + struct.pack("<H", len(text)) + text

    def bytes(self, part: Segment) -> int:
        """Return the bytes of a part, without the header."""
        return (part.stop - part.first) * self.arrays[part.kind][:1].nbytes


def plan(
    earlier: Iterable[Segment], held: Segment, size: int, longest: int
) -> tuple[list[Segment], list[Segment]]:
    """Return the segments of an earlier save that are shared, and those that are to be written.

    Together they hold all rows, each once, and maybe some before them that are no longer in memory.
    Segments have at most `longest` rows, and none passes the seam of the ring of `size` rows.
    """
    shared: list[Segment] = []
    for part in sorted(earlier):
        after = not shared or part.first >= shared[-1].stop
        if after and held.first < part.stop <= held.stop:
            shared.append(part)
    if shared and shared[-1].stop < held.stop and shared[-1].stop % size:
        if (shared[-1].stop - shared[-1].first) * _SHORT < longest:
            shared.pop()
    new, at = [], held.first
    for part in [*shared, held._replace(first=held.stop)]:
        while at < part.first:
            stop = min(part.first, (at // size + 1) * size)
            count = -(-(stop - at) // longest)
            cuts = [at + (stop - at) * i // count for i in range(count + 1)]
            new += [held._replace(first=a, stop=b) for a, b in itertools.pairwise(cuts)]
            at = stop
        at = max(at, part.stop)
    return shared, new


class Saving:
    """One save: planned when it is made, written when it is called, maybe in another thread.

    Rows are read from memory meanwhile; whoever adds rows has to `wait` before overwriting them.
    `previous` is the folder of an earlier save of the same run, or of the one it went on from.
    """

    def __init__(self, rings: Rings, previous: Path | None, longest: int) -> None:
        self.rings, self.previous = rings, previous
        self.shared: list[str] = []
        self.new: list[Segment] = []
        files = {} if previous is None else _segments(previous)
        saved = {
            part: entry.name
            for part, entry in files.items()
            if entry.stat().st_size == len(rings.header(part)) + rings.bytes(part)
        }
        for held in rings.held():
            same = [part for part in saved if part[:2] == held[:2]]
            shared, new = plan(same, held, rings.size, longest)
            self.shared += [saved[part] for part in shared]
            self.new += new
        self.new.sort(key=lambda part: part.first)  # what is overwritten first goes first
        # By environment the first row still to be read, now and after each new segment.
        self._unread = np.full(len(rings.written), _NONE)
        self._then = []
        for part in reversed(self.new):
            self._then.append(self._unread[part.env])
            self._unread[part.env] = part.first
        self._changed = threading.Condition()
        self.active = True

    def wait(self, env: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> None:
        """Wait until no row from `row` on, of the environments `env`, is still to be read."""
        if (row >= self._unread[env]).any():
            with self._changed:
                self._changed.wait_for(lambda: not (row >= self._unread[env]).any())

    def __call__(self, folder: Path) -> None:
        """Write the save into a new or empty folder, and wait until it is on the disk."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for part in self.new:
                self._write(folder, part)
            if self.previous is not None:
                for name in self.shared:
                    link(self.previous / name, folder / name)
            fsync(folder)
        finally:
            self._read_until(None, _NONE)
            self.active = False

    def _write(self, folder: Path, part: Segment) -> None:
        rows = self.rings.arrays[part.kind][self.rings.place(part)]
        with (folder / part.name).open("xb") as file:
            file.write(self.rings.header(part))
            file.write(rows.reshape(-1).view(np.uint8).data)
            file.flush()
            self._read_until(part.env, self._then.pop())
            os.fsync(file.fileno())

    def _read_until(self, env: int | None, row: int) -> None:
        with self._changed:
            self._unread[slice(None) if env is None else env] = row
            self._changed.notify_all()


def _segments(folder: Path) -> dict[Segment, os.DirEntry[str]]:
    """Return the files of a save, by what their names say they hold."""
    entries = os.scandir(folder) if folder.is_dir() else ()
    named = ((entry, _NAME.fullmatch(entry.name)) for entry in entries)
    return {Segment(m[2], int(m[1]), int(m[3]), int(m[4])): entry for entry, m in named if m}


def load(folder: Path, rings: Rings) -> None:
    """Fill memory from the files in `folder`, which must not change as long as it is in use.

    Raises:
        DamagedFile: if rows are missing, or a file is short or of another shape.
    """
    saved = _segments(folder)
    for held in rings.held():
        at = held.first
        for part in sorted(part for part in saved if part[:2] == held[:2]):
            if part.first <= at < part.stop <= held.stop:
                _read(folder / part.name, rings, part, at)
                at = part.stop
        if at < held.stop:
            raise DamagedFile(
                f"replay {folder} has no file with {held.kind} {at} to {held.stop} of environment "
                f"{held.env}; use an older checkpoint"
            )


def _read(path: Path, rings: Rings, part: Segment, at: int) -> None:
    """Read a segment's rows from row `at` on; refuse it if it is not what its name says."""
    array = rings.arrays[part.kind]
    shape = (part.stop - part.first, *array.shape[1:])
    wrong = f"replay segment {path}"
    try:
        saved = np.lib.format.open_memmap(path, mode="r")
        if saved.shape != shape or saved.dtype != array.dtype:
            raise DamagedFile(f"{wrong} holds rows of another shape; use an older checkpoint")
        offset = saved.offset + (at - part.first) * array[:1].nbytes
        mapped_memory.fill(array, rings.place(part._replace(first=at)), path, offset)
    except (OSError, ValueError, SyntaxError, tokenize.TokenError) as error:
        problem = str(getattr(error, "strerror", None) or error)[:80]  # a header may be long
        raise DamagedFile(f"{wrong}: {problem}; use an older checkpoint") from error
