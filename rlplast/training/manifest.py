"""The seal of a checkpoint: its last file, which lists all others with sizes and checksums.

- `manifest`: what it says of the files in a folder.
- `check_seal`, `check`: whether there is one, and whether every file is as it was written.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlplast.core.errors import DamagedFile
from rlplast.training.files import checksum, fsync, read

__all__ = ["FORMAT", "KINDS", "SENTINEL", "check", "check_seal", "manifest"]

SENTINEL = "COMPLETE"
KINDS = ("step", "best", "branch")  # of checkpoints: what their names begin with
FORMAT = 2


def manifest(
    folder: Path, previous: Path | None, fresh: Collection[str] = ()
) -> dict[str, list[int]]:
    """Return ``{name: [bytes, checksum]}`` of a folder's files, everything on disk.

    A file shared with the previous checkpoint, which is on disk already, keeps the checksum it
    was written with: what has been damaged since must not be sealed as good. The files `fresh`
    are new, though they may agree with older ones in name, bytes and time (clocks tick slowly).
    """
    shared = _known(previous) if previous is not None else {}
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name == SENTINEL:
            continue
        about = path.stat()
        name = path.relative_to(folder).as_posix()
        copied = (name, about.st_size, about.st_mtime_ns)
        known = shared.get((about.st_dev, about.st_ino)) or shared.get(copied)
        known = None if name in fresh else known
        if known is None:
            fsync(path)
        found[name] = known or [about.st_size, checksum(path)]
    return found


def _known(folder: Path) -> dict[tuple[Any, ...], list[int]]:
    """Return ``{file: [bytes, checksum]}`` of the files of a sealed checkpoint.

    A file is identified by ``(device, inode)``, and its copy by ``(name, bytes, time of writing)``.
    """
    try:
        files = check_seal(folder)["files"]
    except DamagedFile:  # deleted meanwhile: nothing is shared with it
        return {}
    found = {}
    for name, written in files.items():
        with suppress(OSError):
            about = (folder / name).stat()
            found[about.st_dev, about.st_ino] = written
            found[name, about.st_size, about.st_mtime_ns] = written
    return found


def check_seal(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest; the files it lists are not looked at.

    Raises:
        DamagedFile: if there is none that this version can read.
    """
    try:
        manifest = json.loads(read(folder / SENTINEL))
        files = {name: [int(size), int(crc)] for name, (size, crc) in manifest["files"].items()}
        position = [int(p) for p in manifest["position"]]
        stays = bool(manifest.get("stays"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"{folder} was not finished: it has no readable file {SENTINEL}"
        ) from error
    if manifest.get("format") != FORMAT:
        raise DamagedFile(
            f"{folder} has checkpoint format {manifest.get('format')}: this version reads {FORMAT}"
        )
    return {"position": position, "files": files, "stays": stays, "run": manifest.get("run")}


def check(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        DamagedFile: naming the file that is missing, short or altered.
    """
    for path in folder.rglob("*"):
        if not path.is_file() and not path.is_dir():  # a pipe: reading it would never end
            raise DamagedFile(f"{path} is no plain file")
    for name, (size, written) in check_seal(folder)["files"].items():
        path = folder / name
        try:
            if not path.is_file():
                raise DamagedFile(f"{path} is missing")
            if path.stat().st_size != size:
                raise DamagedFile(f"{path} has {path.stat().st_size} bytes, written were {size}")
            if checksum(path) != written:
                raise DamagedFile(f"{path} was altered after it was written (checksum differs)")
        except OSError as error:
            raise DamagedFile(f"{path} cannot be read: {error}") from error
