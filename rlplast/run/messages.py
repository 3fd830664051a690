"""What a process says, and the exit code that it ends with.

Exit 0 done, 1 failed run or damaged file, 2 bad usage or config, 130 interrupted with a checkpoint
saved.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rlplast.core.errors import Interrupted, RlplastError

__all__ = ["OBEYED", "exit_code", "say", "visible", "warn"]

# C0 but tab and newline; DEL and C1; what turns the direction of letters; halves of letters
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\N{LEFT-TO-RIGHT EMBEDDING}-\N{RIGHT-TO-LEFT OVERRIDE}"
    "\N{LEFT-TO-RIGHT ISOLATE}-\N{POP DIRECTIONAL ISOLATE}\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a text in which what a terminal would obey is an escape.

    Examples:
        >>> print(visible("a" + chr(0x1B) + "[31m"), visible(chr(0x9B)), visible(chr(0x202E)))
        a\x1b[31m \x9b \u202e
    """
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str, end: str = "\n") -> None:
    """Print on stdout, at once; on a terminal its lines break between words."""
    print(_broken(visible(text), sys.stdout), end=end, flush=True)


def _broken(text: str, file: TextIO) -> str:
    """Return a text with the lines that are too long for a terminal broken between words."""
    if not file.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        if len(line) > width
        else line
        for line in text.split("\n")
    )
    return "\n".join(lines)


def warn(text: str, file: TextIO | None = None) -> None:
    """Print a line on stderr, at once; nothing if nobody listens any more."""
    with suppress(OSError, ValueError):
        out = file or sys.stderr
        print(_broken(visible(text), out), file=out, flush=True)


def exit_code(run: Callable[[], int]) -> int:
    """Return what `run` returns, or the exit code of the error it ends with, which is printed."""
    try:
        return run()
    except Interrupted as error:
        from rlplast.training.distributed import rank  # here, as torch takes a second

        if rank() == 0:  # all ranks stop at one step
            warn(f"rlplast: {error}")
        return error.exit_code
    except RlplastError as error:
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
