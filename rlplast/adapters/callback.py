"""What the callbacks of all trainers have."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rlplast.adapters.driver import Driver
from rlplast.adapters.state import HookList
from rlplast.core.method.receipt import Receipt
from rlplast.training import checkpoint

__all__ = ["DriverCallback"]


class DriverCallback:
    """Receipts, lines of metrics, phases and state of a driver."""

    def __init__(
        self,
        hooks: HookList,
        total: str | None = None,
        seed: int = 0,
        receipts: str | Path | None = None,
        networks: Mapping[str, str | Sequence[str]] | None = None,
        *,
        probe: Any = None,
        loss: Any = None,
    ) -> None:
        self.driver = Driver(hooks, total, seed, receipts, probe, loss)
        self.paths = networks

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of this process, in order."""
        return self.driver.receipts

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context with the weights that evaluations use; ConfigError before training."""
        return self.driver.evaluating()

    def start_phase(self) -> None:
        """Count a new phase (task, data set), and fire what is due ``on: phase_start``."""
        self.driver.advance(phase=self.driver.clock.phase + 1)

    def save(self, path: str | Path) -> None:
        """Save θ0, the hooks' state and counters as a folder; one that is there is replaced."""
        checkpoint.save(Path(path), (self.driver.clock.updates,), {}, self.driver.state_dict())

    def load(self, path: str | Path) -> None:
        """Go on from the folder that `save` wrote, when the trainer goes on."""
        self.driver.load_state_dict(checkpoint.load(Path(path))[1])
