"""A terminal that tests look at: a pty whose output is read, and what stands in its rows."""

import contextlib
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator

import pytest

__all__ = ["LONG", "rows", "terminal"]

LONG = "a_method_of_ones_own_whose_name_is_as_long_as_a_whole_row_of_a_usual_terminal_or_longer"

_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@contextlib.contextmanager
def terminal(patch: pytest.MonkeyPatch, columns: int, lines: int = 24) -> Iterator[bytearray]:
    """Let stderr be a terminal of a size; yields the bytes that are written to it."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", columns), ("LINES", lines)):
        patch.setenv(name, str(value))
    inside, outside = pty.openpty()
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # how a pty says that it was closed
            while data := os.read(inside, 65536):
                written.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(outside, "w", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            assert sys.stderr.isatty()
            yield written
    finally:
        reader.join()
        os.close(inside)


def rows(written: bytes) -> list[str]:
    """Return every row that was written, without what moves the cursor or colours letters."""
    text = _CODES.sub(b"", bytes(written)).decode()
    return [row for row in re.split(r"[\r\n]+", text) if row]
