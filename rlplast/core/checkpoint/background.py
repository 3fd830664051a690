"""One job at a time beside the caller: a checkpoint is written while training goes on.

- `Background`: starts a job in a thread and waits for it.
- `give_way`: what a job calls between pieces of its work.
- `hurry`: what somebody calls who has to wait for a part of it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

__all__ = ["Background", "give_way", "hurry"]

_NICER = 10  # of the 20 steps there are: training goes first where cores are few
_REST = 4.0  # times as long as its work a job rests: training on all cores waits for each of them
_LONGEST = 0.1  # seconds a job rests at most


class _Worker(threading.Thread):
    """The thread of one job.

    Attributes:
        hurry: set once somebody waits for the job.
    """

    def __init__(self, job: Callable[[], None]) -> None:
        super().__init__(target=job, name="rlplast-background")
        self.hurry = threading.Event()
        self._rested: float | None = None

    def rest(self) -> None:
        worked = 0.0 if self._rested is None else time.perf_counter() - self._rested
        self.hurry.wait(min(_REST * worked, _LONGEST))
        self._rested = time.perf_counter()


def hurry() -> None:
    """Let jobs in the background rest no more: somebody waits for what they do."""
    for thread in threading.enumerate():
        if isinstance(thread, _Worker):
            thread.hurry.set()


def give_way() -> None:
    """Rest a while if this is a job in the background that nobody waits for yet.

    A job calls it between pieces of its work, of a fraction of a millisecond each: a step on
    all cores is as slow as the one of them that the job shares.
    """
    thread = threading.current_thread()
    if isinstance(thread, _Worker):
        thread.rest()


class Background:
    """A thread for one job at a time.

    As a context it waits at its end. An error of the job is raised there, or by the next call,
    unless another one is on its way already.

    Examples:
        >>> with Background() as background:
        ...     background.start(lambda: print("written"))
        written
    """

    def __init__(self) -> None:
        self._thread: _Worker | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Wait for the job before, then start this one."""
        self.wait()
        self._thread = _Worker(lambda: self._run(job))
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a job that has failed; do not wait for one that is under way."""
        if self._error is not None:
            self.wait()

    def wait(self) -> None:
        """Wait for the job under way, and raise its error."""
        if self._thread is not None:
            self._thread.hurry.set()
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        with suppress(OSError, AttributeError):  # on Linux a thread has a niceness of its own
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICER
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        try:
            job()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except BaseException:
            if error is None:
                raise
