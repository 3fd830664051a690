"""The program `rlplast`, and ``python -m rlplast``.

Environments in worker processes import the file that the program began with once more, so the
command line, and torch with it, are imported by `main`.
"""

import sys

__all__ = ["main"]


def main() -> int:
    """Run one command; returns the exit code."""
    try:
        from rlplast.cli.main import main as run  # seconds, in which one may press Ctrl-C
    except KeyboardInterrupt:
        print("rlplast: interrupted before it began", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
