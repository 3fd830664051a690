"""The program `rlplast`, and ``python -m rlplast``.

Environments in worker processes import the file that the program began with once more, so the
command line, and torch with it, are imported by `main`.
"""

import os
import sys

__all__ = ["main"]


def main() -> int:
    """Run one command; returns the exit code."""
    _open_streams()
    from rlplast.cli.main import main as run
    from rlplast.cli.output import show_error

    sys.excepthook = show_error
    return run()


def _open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "w" if number else "r"))


if __name__ == "__main__":
    sys.exit(main())
