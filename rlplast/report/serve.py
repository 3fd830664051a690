"""A report that a browser shows while its runs go on.

- `serve`: shows a folder, and writes the report in it again whenever runs have written something.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.report.gather import walk

__all__ = ["serve"]

_WATCHED = ("journal.jsonl", "study.json", "run.json")  # they change as runs begin and end


def serve(
    folders: Sequence[Path],
    write: Callable[[], Any],
    out: Path,
    port: int,
    started: Callable[[str], None],
    every: float = 5.0,
) -> None:
    """Show a report on this machine until interrupted; its page loads itself again.

    Args:
        folders: of the runs.
        write: writes ``report.html`` into `out`.
        out: the folder to show.
        port: 0 for any that is free.
        started: is told the page's address.
        every: seconds between two looks at the runs.

    Raises:
        ConfigError: if the port is taken.
    """
    handler = partial(_Handler, directory=str(out))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port} ({error}): allowed is a free one, or 0 for any"
        ) from error
    seen = _state(folders)
    write()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    started(f"http://127.0.0.1:{server.server_port}/report.html")
    try:
        while True:
            time.sleep(every)
            now = _state(folders)
            if now == seen:
                continue
            seen = now
            try:
                write()
            except (OSError, RlplastError) as error:  # a file half written, a folder that is gone
                print(f"rlplast: the report stays as it was: {error}", file=sys.stderr, flush=True)
    finally:
        server.shutdown()
        server.server_close()


def _state(folders: Sequence[Path]) -> dict[Path, int]:
    """Return when each file that says how runs stand was written, in nanoseconds."""
    found = {}
    for root, _, names in (own for folder in folders for own in walk(folder)):
        for path in (root / name for name in _WATCHED if name in names):
            with suppress(FileNotFoundError):  # it is being replaced
                found[path] = path.stat().st_mtime_ns
    return found


class _Handler(SimpleHTTPRequestHandler):
    """Shows the files of a folder, and says nothing on the terminal."""

    def send_head(self) -> Any:
        """Answer a request for the folder with the report's page."""
        if self.path.partition("?")[0] == "/":
            self.path = "/report.html"
        try:
            return super().send_head()
        except ValueError:  # a path that no file can have
            self.send_error(404)

    def list_directory(self, path: Any) -> None:
        """Show no list of a folder's files."""
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""
