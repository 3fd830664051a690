"""SIGINT and SIGTERM, noted for the end of a step.

- `Signals`: a block in which they are noted instead of acted on.
"""

import signal
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Signals"]

_NOTED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A block in which the first SIGINT or SIGTERM is noted; a second one acts at once.

    Outside the main thread signals are the host's affair, and nothing is noted.

    Attributes:
        received: number of the signal; 0 for none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[signal.Signals, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for noted in _NOTED:
            signal.signal(noted, signal.SIG_DFL)

    def __enter__(self) -> "Signals":
        before = {noted: signal.getsignal(noted) for noted in _NOTED}
        try:
            for noted in _NOTED:
                signal.signal(noted, self._note)
        except ValueError:  # not the main thread
            return self
        self._before = before
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for noted, handler in self._before.items():
            signal.signal(noted, handler)
