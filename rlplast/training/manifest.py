"""The seal of a checkpoint: its last file, which lists all others with sizes and checksums."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlplast.core.errors import DamagedFile
from rlplast.training.files import checksum, fsync, read

__all__ = ["FORMAT", "KINDS", "SENTINEL", "check", "check_seal", "manifest"]

SENTINEL = "COMPLETE"
KINDS = ("step", "best", "branch")  # of checkpoints: what their names begin with
FORMAT = 3


def manifest(folder: Path, previous: Path | None) -> dict[str, list[int]]:
    """Return ``{name: [bytes, checksum]}`` of a folder's files, everything on disk.

    A hard link to a file of the previous checkpoint keeps the checksum it was written with: what
    has been damaged since must not be sealed as good.
    """
    shared = _known(previous) if previous is not None else {}
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name == SENTINEL:
            continue
        about = path.stat()
        known = shared.get((about.st_dev, about.st_ino))
        if known is None:
            fsync(path)
        found[path.relative_to(folder).as_posix()] = known or [about.st_size, checksum(path)]
    return found


def _known(folder: Path) -> dict[tuple[int, int], list[int]]:
    """Return ``{(device, inode): [bytes, checksum]}`` of the files of a sealed checkpoint."""
    found = {}
    with suppress(DamagedFile):  # deleted meanwhile: nothing is shared with it
        for name, written in check_seal(folder)["files"].items():
            with suppress(OSError):
                about = (folder / name).stat()
                found[about.st_dev, about.st_ino] = written
    return found


def check_seal(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, its files unseen; DamagedFile if it has none of ours."""
    try:
        manifest = json.loads(read(folder / SENTINEL))
        files = {name: [int(size), int(crc)] for name, (size, crc) in manifest["files"].items()}
        position = [int(p) for p in manifest["position"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"{folder} was not finished: it has no readable file {SENTINEL}"
        ) from error
    if manifest.get("format") != FORMAT:
        raise DamagedFile(
            f"{folder} has checkpoint format {manifest.get('format')}: this version reads {FORMAT}"
        )
    return {"position": position, "files": files, "run": manifest.get("run")}


def check(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest, else raise DamagedFile."""
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
