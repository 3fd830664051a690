"""Files that survive a crash: forced to disk before they are renamed into place.

- `fsync`: a file's bytes, or a folder's entries.
- `lock`: a file that one process at a time has.
- `link`: a second name for a file that never changes.
- `read`: a file's bytes, of plain files only.
- `checksum`: of a file's bytes.
"""

import fcntl
import os
import shutil
import zlib
from pathlib import Path
from typing import TextIO

__all__ = ["checksum", "fsync", "link", "lock", "read"]

_PIECE = 1 << 20  # bytes read at once


def fsync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to disk.

    Raises:
        OSError: if the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> TextIO | None:
    """Open a file, created if absent, that is locked until it is closed or the process ends.

    Returns:
        The file; None if another process, or other file object, has it locked.

    Raises:
        OSError: if it cannot be written.
    """
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    os.utime(path)  # its time says when it was taken
    return file


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it and its times where there are no hard links.

    Raises:
        OSError: if there is no such file, or the disk is full.
    """
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)  # its time of writing tells that it is a copy
        fsync(target)


def read(path: Path) -> bytes:
    """Return a file's bytes. A pipe in its place is refused: reading it would never end.

    Raises:
        OSError: if it is no plain file, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is no plain file")
    return path.read_bytes()


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file.

    Raises:
        OSError: if it cannot be read.
    """
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value
