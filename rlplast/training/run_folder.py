"""A run's folder: its config, its metrics and receipts, its lock, its checkpoints.

Lines are appended as they happen. Each checkpoint stores how long the files were. Resume cuts them
back to that length, so an interrupted run leaves no line twice.
"""

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.training.files import check_plain, fsync, lock, whole

__all__ = ["RunFolder", "near", "numbered", "write_json", "write_text"]

LINES = ("metrics.jsonl", "receipts.jsonl")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise RlplastError(
            f"{path} could not be written ({error}); checkpoints are intact: free space or fix "
            "permissions, then `rlplast resume`, or the study's command again"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file that is whole at any moment."""
    with _writing(path), whole(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def near(path: Path) -> Path:
    """Return how a folder is called from here: relative to the current folder if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def numbered(path: Path) -> Path:
    """Return `path` with the first number at its end that makes a name nothing has yet."""
    names = (path.with_name(f"{path.name}{i}") for i in itertools.count(1))
    return next(name for name in names if not name.exists())


class RunFolder:
    """The one writer of a run's folder, which is created if absent.

    Attributes:
        path: the folder.
        lost: by file, how many lines `cut` has cut off, which the run writes anew.
        listener: called with each line once it is in its file: with the file (metrics or receipts),
            the clock's counters, and the values or the receipt.

    Raises:
        ConfigError: if another process writes to the folder.
        DamagedFile: if one of its files is no plain one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: dict[str, int] = {}
        self.listener: Callable[[list[Any]], object] | None = None
        self._unheard: list[Any] = []
        path.mkdir(parents=True, exist_ok=True)
        for name in LINES:
            check_plain(path / name)
        taken = lock(path / ".lock")
        if taken is None:
            raise ConfigError(
                f"{path} is in use by another process: wait for it, or choose another --out"
            )
        self._lock = taken
        self._files = {name: (path / name).open("ab") for name in LINES}

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.path / "checkpoints"

    def metrics(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Append one flat line: the clock's counters and the values; not-a-number is null."""
        self._append("metrics.jsonl", {**clock, **values})
        self._notify("metrics", clock, values)

    def receipt(self, row: Mapping[str, Any]) -> None:
        """Append one receipt."""
        self._append("receipts.jsonl", row)
        self._notify("receipts", row.get("clock", {}), row)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
        line = json.dumps(finite, allow_nan=False).encode() + b"\n"
        with _writing(self.path / name):
            self._files[name].write(line)

    def _notify(self, *line: Any) -> None:
        if self.listener is not None:
            self._unheard.append(line)

    def lengths(self) -> dict[str, int]:
        """Return the files' lengths in bytes, all lines so far visible to readers."""
        self.flush()
        return {name: file.tell() for name, file in self._files.items()}

    def sync(self) -> None:
        """Force to disk at least what `lengths` last counted; any thread may do it."""
        for name, file in self._files.items():
            with _writing(self.path / name):
                os.fsync(file.fileno())

    def flush(self) -> None:
        """Make what was appended visible to readers."""
        for name, file in self._files.items():
            with _writing(self.path / name):
                file.flush()
        lines, self._unheard = self._unheard, []
        if lines and self.listener is not None:
            self.listener(lines)

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut the files back to a checkpoint's lengths; DamagedFile if no line ends there."""
        for name, length in lengths.items():
            path, file = self.path / name, self._files[name]
            with path.open("rb") as reader:
                reader.seek(max(0, length - 1))
                end, rest = reader.read(min(length, 1)), reader.read()
            if end != b"\n"[:length]:
                raise DamagedFile(
                    f"{path}: the checkpoint counts {length} bytes, at which no line ends: it was "
                    "edited, or lines were lost; restore it from a copy"
                )
            self.lost[name.removesuffix(".jsonl")] = rest.count(b"\n")
            with _writing(path):
                file.truncate(length)
            file.seek(0, os.SEEK_END)

    def set_aside(self) -> list[Path]:
        """Begin the files anew; return copies of those that were not empty."""
        kept = []
        for name, length in self.lengths().items():
            if length > 0:
                kept.append(numbered(self.path / f"{name}."))
                with _writing(kept[-1]):
                    shutil.copyfile(self.path / name, kept[-1])
                    fsync(kept[-1])
        self.cut(dict.fromkeys(self._files, 0))
        return kept

    def close(self) -> None:
        """Close and unlock; lines that were not flushed may be lost if the disk is full."""
        for file in (*self._files.values(), self._lock):
            if file is not None:
                with suppress(OSError):
                    file.close()


def clock_fields(clock: Clock, units: tuple[str, ...]) -> dict[str, int]:
    """Return the counters a run counts, for a line of metrics."""
    return {unit: clock[unit] for unit in units}
