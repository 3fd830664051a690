"""One job at a time beside the caller: a checkpoint is written while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Background"]


class Background:
    """A thread for one job at a time.

    An error of the job is raised by the next call or, as a context, at the end, unless another one
    is on its way already.

    Examples:
        >>> with Background() as background:
        ...     background.start(lambda: print("written"))
        written
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "rlplast-background")
        self._job: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None and not self._job.done()

    def start(self, job: Callable[[], None]) -> None:
        """Wait for the job before, then start this one."""
        self.wait()
        self._job = self._thread.submit(job)

    def check(self) -> None:
        """Raise the error of a job that has failed; do not wait for one that is under way."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the job under way, and raise its error."""
        job = self._job
        if job is not None:
            error = job.exception()
            self._job = None
            if error is not None:
                raise error

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self.wait()
        except BaseException:
            if error is None:
                raise
