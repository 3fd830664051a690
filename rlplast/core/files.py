"""Files that survive a crash: forced to disk before they are renamed into place."""

import os
from pathlib import Path

__all__ = ["fsync"]


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
