"""Files that survive a crash: forced to disk before they are renamed into place."""

import fcntl
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlplast.core.errors import DamagedFile

__all__ = ["check_plain", "checksum", "fsync", "is_locked", "link", "lock", "read", "whole"]

_PIECE = 1 << 20  # bytes read at once


def fsync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`, and rename what the block makes there over `path`, fsynced.

    What was there stays if the block fails. A folder takes the place of none, or of an empty one.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    _delete(temporary)  # a killed process's, or a pipe, whose opening never ends
    try:
        yield temporary
        fsync(temporary)
        temporary.rename(path)
    except (Exception, KeyboardInterrupt):
        _delete(temporary)
        raise


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def lock(path: Path) -> TextIO | None:
    """Open a file, created if absent, that is locked until it is closed or the process ends.

    Returns None if another process, or other file object, has it locked.

    Raises:
        DamagedFile: if it is no plain file.
        OSError: if it cannot be written.
    """
    check_plain(path)
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    os.utime(path)  # its time says when it was taken
    return file


def is_locked(path: Path) -> bool:
    """Say whether a process of this machine has a file locked, without locking others out."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where there are no hard links."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        fsync(target)


def read(path: Path) -> bytes:
    """Return a file's bytes; DamagedFile if it is no plain file."""
    check_plain(path)
    return path.read_bytes()


def check_plain(path: Path) -> None:
    """Raise DamagedFile for a pipe and the like, whose opening might never end."""
    if path.exists() and not path.is_file():
        raise DamagedFile(f"{path} is no plain file: delete it, or move it away")


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value
