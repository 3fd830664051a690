"""A run's folder: its config, its metrics and receipts, its lock, its checkpoints.

Lines are appended as they happen. Each checkpoint stores how long the files were, and
resume cuts them back to that, so an interrupted run leaves no line twice.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile

__all__ = ["RunFolder", "write_json"]

LINES = ("metrics.jsonl", "receipts.jsonl")


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside `path`, fsync, and rename over it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(value, file, indent=2, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


class RunFolder:
    """The one writer of a run's folder.

    Args:
        path: the folder; created if absent.
        tensorboard: whether ``events.*`` files are written too.

    Raises:
        ConfigError: if another process writes to the folder.
    """

    def __init__(self, path: Path, tensorboard: bool = True) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"{path} is in use by another process: wait for it, or choose another --out"
            ) from error
        self._files = {name: (path / name).open("ab") for name in LINES}
        self._tensorboard = tensorboard
        self._writer: Any = None

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.path / "checkpoints"

    def metrics(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Append one flat line: the clock's counters and the values; not-a-number is null."""
        self._append("metrics.jsonl", {**clock, **values})
        if self._tensorboard:
            step = max(clock.get("env_steps", 0), clock.get("updates", 0))
            for name, value in values.items():
                self._events().add_scalar(name, value, step)

    def receipt(self, row: Mapping[str, Any]) -> None:
        """Append one receipt."""
        self._append("receipts.jsonl", row)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
        self._files[name].write(json.dumps(finite, allow_nan=False).encode() + b"\n")

    def _events(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.path))
        return self._writer

    def lengths(self) -> dict[str, int]:
        """Return the files' lengths in bytes, everything so far on disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def flush(self) -> None:
        """Make what was appended visible to readers."""
        for file in self._files.values():
            file.flush()
        if self._writer is not None:
            self._writer.flush()

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut the files back to the lengths a checkpoint stored.

        Raises:
            DamagedFile: if a file is shorter than the checkpoint says.
        """
        for name, length in lengths.items():
            file = self._files[name]
            size = file.seek(0, os.SEEK_END)
            if size < length:
                raise DamagedFile(
                    f"{self.path / name} has {size} bytes, the checkpoint counts {length}: lines "
                    "were lost"
                )
            file.truncate(length)
            file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flush, close and unlock."""
        for file in self._files.values():
            file.close()
        if self._writer is not None:
            self._writer.close()
        self._lock.close()


def clock_fields(clock: Clock, units: tuple[str, ...]) -> dict[str, int]:
    """Return the counters a run counts, for a line of metrics."""
    return {unit: clock[unit] for unit in units}
