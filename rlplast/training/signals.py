"""Signals that ask a run to stop, noted for the end of a step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rlplast.core.errors import Interrupted

__all__ = ["EvaluationStopped", "heard", "noted_signals", "stop_if_asked"]

_noted: list[list[int]] = []  # by each block that is open


class EvaluationStopped(Exception):
    """An evaluation ended early because a signal asked the run to stop."""


def stop_if_asked() -> None:
    """Raise EvaluationStopped in the main thread if a signal was noted."""
    if any(_noted) and threading.current_thread() is threading.main_thread():
        raise EvaluationStopped


def heard() -> list[signal.Signals]:
    """Return the signals that ask to stop; not SIGHUP where it is ignored, as nohup does.

    SIGINT counts even where a shell had it ignored, so Ctrl-C also stops runs started with ``&``.
    """
    asking = [signal.SIGINT, signal.SIGTERM]
    hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [*asking, signal.SIGHUP] if hangup else asking


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note SIGINT, SIGTERM and SIGHUP in a block; yields the numbers noted so far.

    A SIGINT after SIGINT or SIGTERM raises Interrupted wherever Python code runs or waits, such as
    in an environment that hangs; compiled code goes on until it returns. A third one ends the
    process, as the system does it. SIGTERM and SIGHUP only ask: Slurm sends SIGTERM to each
    process, and so does who started this one; a terminal that closes may send SIGHUP twice.
    Outside the main thread signals are the host's affair, and nothing is noted.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and any(own != signal.SIGHUP for own in received)
        received.append(number)
        if again:
            for own in (signal.SIGINT, signal.SIGTERM):
                signal.signal(own, signal.SIG_DFL)
            raise KeyboardInterrupt

    before = {own: signal.getsignal(own) for own in heard()}
    try:
        for own in before:
            signal.signal(own, note)
    except ValueError:  # not the main thread
        before = {}
    _noted.append(received)
    try:
        yield received
    except KeyboardInterrupt as error:
        if not received:
            raise
        name = signal.Signals(received[-1]).name
        raise Interrupted(
            f"ended at once by another {name}: `rlplast resume` goes on from the newest checkpoint"
        ) from error
    finally:
        _noted[:] = [other for other in _noted if other is not received]
        for own, handler in before.items():
            signal.signal(own, handler)
