"""The program `rlplast`, and ``python -m rlplast``.

Environments in worker processes import the file that the program began with once more, so the
command line, and torch with it, are imported by `main`.
"""

import os
import signal
import sys
import threading
from typing import Any

__all__ = ["main"]

_LATE = 5.0  # seconds without a line, as long as a disk is not slow
_LATE_FOR_PEOPLE = 1.0


def main() -> int:
    """Run one command; returns the exit code."""
    _open_streams()
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # an import that is interrupted may well make another error of it
        signal.signal(signal.SIGINT, _stop)
    seconds = _LATE_FOR_PEOPLE if os.isatty(2) else _LATE
    late = threading.Timer(seconds, os.write, (2, b"starting: packages are being imported\n"))
    late.daemon = True
    late.start()
    from rlplast.cli.main import main as run
    from rlplast.cli.output import show_error

    sys.excepthook = show_error

    def imported() -> None:
        late.cancel()
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return run(imported=imported)


def _open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "w" if number else "r"))


def _stop(*ignored: Any) -> None:
    os.write(2, b"rlplast: interrupted before it began\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
