"""A replay memory on disk: rings of rows in segments, unchanged segments shared by saves.

- `Segment`, `segments`: which rows of memory go into which file.
- `save`: write the segments, hard-linking those that an earlier save already has.
- `load`: read them back.

Every segment is one plain `.npy` file per array. Its name says how many rows its ring had been
given when the segment last changed, so files of one run with equal names have equal content.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.files import fsync

__all__ = ["Segment", "load", "save", "segments"]


class Segment(NamedTuple):
    """A part of one ring: the beginning of its files' names and the rows of memory it holds."""

    name: str
    memory: slice


def segments(rows_written: Sequence[int], rows_per_env: int, segment_rows: int) -> list[Segment]:
    """List the parts of all rings that have been written to; the last one may be partly full.

    Args:
        rows_written: rows ever given to each ring.
        rows_per_env: rows a ring holds; the rings lie one after the other in memory.
        segment_rows: rows per file.
    """
    found = []
    for env, written in enumerate(rows_written):
        for index, start in enumerate(range(0, min(rows_per_env, written), segment_rows)):
            stop = min(start + segment_rows, rows_per_env, written)
            lap_start = (written - 1) // rows_per_env * rows_per_env
            if lap_start + start >= written:  # in this lap the ring has not come so far yet
                lap_start -= rows_per_env
            newest = min(lap_start + stop, written) - 1
            # A row gets its action and reward just before the next row is written, so a
            # segment is final only when one row beyond it exists.
            changed = min(newest + 2, written)
            name = f"env{env:04d}-segment{index:05d}-rows{changed:012d}"
            memory = slice(env * rows_per_env + start, env * rows_per_env + stop)
            found.append(Segment(name, memory))
    return found


def save(
    folder: Path,
    previous: Path | None,
    arrays: Mapping[str, npt.NDArray[Any]],
    parts: Sequence[Segment],
) -> None:
    """Write `parts` of every array to `folder` and wait until they are on the disk.

    Args:
        folder: a new or empty folder.
        previous: folder of an earlier save of the same run, or None.
        arrays: name in the files and whole array, rows first.
        parts: what `segments` lists.

    Raises:
        ConfigError: if `folder` has files in it; overwriting would change other saves that
            share them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"replay folder {folder} is not empty: save into a new one")
    for part in parts:
        for kind, array in arrays.items():
            name, rows = f"{part.name}-{kind}.npy", array[part.memory]
            if previous is None or not _link(previous / name, folder / name, rows):
                _write(folder / name, rows)
    fsync(folder)


def load(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], parts: Sequence[Segment]) -> None:
    """Fill `parts` of every array from the files in `folder`.

    Raises:
        DamagedFile: if a file is missing, short or of another shape; rows read before it
            have been replaced by then.
    """
    for part in parts:
        for kind, array in arrays.items():
            rows = array[part.memory]
            rows[...] = _open(folder / f"{part.name}-{kind}.npy", rows)


def _open(path: Path, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Map the array in `path`, which has to look like `like`.

    Raises:
        DamagedFile: if it does not, or if there is no such file.
    """
    expected = f"{like.dtype} array of shape {like.shape}"
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise DamagedFile(
            f"replay segment {path}: expected a {expected}, but: {error}; use an older checkpoint"
        ) from error
    if array.shape != like.shape or array.dtype != like.dtype:
        raise DamagedFile(
            f"replay segment {path}: expected a {expected}, found a {array.dtype} array of "
            f"shape {array.shape}; use an older checkpoint"
        )
    return array


def _link(source: Path, target: Path, like: npt.NDArray[Any]) -> bool:
    """Give the file `source` the second name `target`, if it is there and undamaged."""
    try:
        _open(source, like)
    except DamagedFile:
        return False
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        fsync(target)
    return True


def _write(path: Path, rows: npt.NDArray[Any]) -> None:
    with path.open("xb") as file:
        np.save(file, rows, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
