"""TensorBoard: ``events.*`` in the run's folder."""

from collections.abc import Mapping
from typing import Any

from rlplast.run.loggers.logger import About

__all__ = ["LIBRARY", "REMEDY", "TensorBoard", "start"]

LIBRARY = ("tensorboard.summary", "")

REMEDY = "look at what it says"


class TensorBoard:
    """Writes scalars over env_steps or updates, whichever are more."""

    resumed = None

    def __init__(self, about: About) -> None:
        self._folder = about.folder
        self._writer: Any = None

    def log(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Write one line."""
        step = max(clock.get("env_steps", 0), clock.get("updates", 0))
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Make what was written visible to readers."""
        if self._writer is not None:
            self._writer.flush()

    def close(self, status: str) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


start = TensorBoard
