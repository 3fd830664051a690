"""One job at a time beside the caller: a checkpoint is written while training goes on.

- `Background`: starts a job in a thread and waits for it.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

__all__ = ["Background"]

_NICER = 10  # of the 20 steps there are: training goes first where cores are few


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
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Wait for the job before, then start this one."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name="rlplast-background")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a job that has failed; do not wait for one that is under way."""
        if self._error is not None:
            self.wait()

    def wait(self) -> None:
        """Wait for the job under way, and raise its error."""
        if self._thread is not None:
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
