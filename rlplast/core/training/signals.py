"""SIGINT and SIGTERM, noted for the end of a step.

- `noted_signals`: a block in which they are noted instead of acted on.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["noted_signals"]

_NOTED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note the first SIGINT or SIGTERM in a block; a second one acts at once.

    Outside the main thread signals are the host's affair, and nothing is noted.

    Yields:
        The numbers of the signals noted so far.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for noted in _NOTED:
            signal.signal(noted, signal.SIG_DFL)

    before = {noted: signal.getsignal(noted) for noted in _NOTED}
    try:
        for noted in _NOTED:
            signal.signal(noted, note)
    except ValueError:  # not the main thread
        before = {}
    try:
        yield received
    finally:
        for noted, handler in before.items():
            signal.signal(noted, handler)
