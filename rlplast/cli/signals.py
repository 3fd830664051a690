"""Signals that stop a command."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rlplast.training.signals import heard

__all__ = ["stoppable"]


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the block as SIGINT does, with KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the host's affair
        return

    def hang_up(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes may send it twice
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: signal.default_int_handler, signal.SIGHUP: hang_up}
    before = {own: signal.signal(own, handlers[own]) for own in heard() if own in handlers}
    try:
        yield
    finally:
        for own, handler in before.items():
            signal.signal(own, handler)
