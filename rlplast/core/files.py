"""Files that survive a crash: forced to disk before they are renamed into place.

- `fsync`: a file's bytes, or a folder's entries.
- `link`: a second name for a file that never changes.
"""

import os
import shutil
from pathlib import Path

__all__ = ["fsync", "link"]


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


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where there are no hard links.

    Raises:
        OSError: if there is no such file, or the disk is full.
    """
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        fsync(target)
