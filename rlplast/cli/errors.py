"""Errors turned into exit codes, for every entry point; signals.

Exit 0 done, 1 failed run or damaged file, 2 bad usage or config, 130 interrupted with a
checkpoint saved.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rlplast.cli.output import warn
from rlplast.core.errors import Interrupted, RlplastError
from rlplast.training.signals import heard

__all__ = ["exit_code", "stoppable"]


def exit_code(run: Callable[[], int]) -> int:
    """Return what `run` returns, or the exit code of the error it ends with, which is said."""
    try:
        return run()
    except RlplastError as error:
        from rlplast.training.distributed import rank  # here, as torch takes a second

        if rank() == 0 or not isinstance(error, Interrupted):  # all ranks stop at one step
            warn(f"rlplast: {error}")
        return error.exit_code
    except RuntimeError as error:
        from rlplast.training.distributed import world

        if world() == 1 or not any(word in str(error) for word in ("gloo", "Gloo", "NCCL")):
            raise
        warn(f"rlplast: another process ended, see its message ({error})")
        return 1
    except KeyboardInterrupt:
        warn("rlplast: interrupted before anything was saved")
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        warn(f"rlplast: {error}")
        return 1


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
