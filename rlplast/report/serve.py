"""A report that a browser shows while its runs go on.

A page of another site that a browser shows may send requests here under a name of its own, which
leads to this machine (DNS rebinding). So only requests for this machine's own name are answered.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.report.frame import walk

__all__ = ["serve"]

# Any port: one on another machine may lead here, as of `ssh -L 9000:localhost:8000`.
_OURS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_WATCHED = ("study.json", "run.json", "metrics.jsonl")
_EVERY = 5.0  # seconds between two looks at the runs
_REST = 10  # times as long as the page took to write, it is left as it is: runs need the cores


def serve(
    folders: Sequence[Path],
    write: Callable[[], Any],
    out: Path,
    port: int,
    started: Callable[[str], None],
    failed: Callable[[str], None],
) -> None:
    """Show a report on this machine until interrupted; its page renews itself.

    `write` writes ``report.html`` into `out`; port 0 is any that is free. `started` is called with
    the page's address, `failed` with a line that says why the report could not be written again.

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
    seen, took = _state(folders), 0.0
    write()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    started(f"http://127.0.0.1:{server.server_port}/report.html")
    try:
        while True:
            time.sleep(max(_EVERY, _REST * took))
            now = _state(folders)
            if now == seen:
                continue
            seen, began = now, time.monotonic()
            try:
                write()
            except (OSError, RlplastError) as error:  # a file half written, a folder that is gone
                failed(f"the report stays as it was: {error}")
            took = time.monotonic() - began
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
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _OURS.fullmatch(hosts[0]):
            return self.send_error(403, "Only at http://localhost and http://127.0.0.1")
        if self.path.partition("?")[0] == "/":
            self.path = "/report.html"
        try:
            path = os.path.realpath(self.translate_path(self.path))
        except ValueError:  # a path that no file can have
            path = ""
        inside = path.startswith(os.path.realpath(self.directory) + os.sep)
        if inside and os.path.isfile(path):  # no folder, and nothing a link leads out to
            return super().send_head()
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""
