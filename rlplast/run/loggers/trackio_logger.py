"""Trackio: one run there for each run here, named by folder and id."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from rlplast.run.loggers.logger import About

__all__ = ["LIBRARY", "REMEDY", "Trackio", "start"]

LIBRARY = ("trackio", "trackio")  # a module, and the extra that has it

PROJECT = "rlplast"
REMEDY = "look at TRACKIO_DIR, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL"


class Trackio:
    """Logs lines and receipts as they come; their step is env_steps or updates.

    Without TRACKIO_SPACE_ID and TRACKIO_SERVER_URL all stays on this machine, in TRACKIO_DIR.
    """

    def __init__(self, about: About) -> None:
        import trackio

        study = dict(about.study)
        given: dict[str, Any] = {
            "project": PROJECT,
            "name": f"{about.name}-{about.id[:8]}",  # by which a run is found again
            "group": study.get("study"),
            "config": dict(about.config) | ({"study": study} if study else {}),
            "embed": False,
        }
        self._axis = about.axis
        with redirect_stdout(sys.stderr):
            try:
                self._run, self.resumed = trackio.init(resume="must", **given), True
            except ValueError:  # there is none
                self._run, self.resumed = trackio.init(resume="never", **given), False

    def log(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Log one line."""
        self._run.log({**clock, **values}, step=clock.get(self._axis, 0))

    def flush(self) -> None:
        """A thread of its own sends lines, twice a second."""

    def close(self, status: str) -> None:
        """Send the rest."""
        import trackio

        with redirect_stdout(sys.stderr):
            trackio.finish()


start = Trackio
