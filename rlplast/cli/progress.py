"""The progress of a run: what it does, a bar, rate, time left, next firing, and scores."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlplast.cli.live import Rows
from rlplast.cli.tables import clock_words
from rlplast.core.duration import duration
from rlplast.run.tasks import tasks_of
from rlplast.training.distributed import rank
from rlplast.training.loop import Loop

__all__ = ["RunProgress", "progress"]

_SCORES = {  # name in metrics → in the line
    "train/return": "return",
    "train/loss": "loss",
    "eval/return_mean": "eval return",
    "eval/accuracy": "eval accuracy",
    "eval/loss": "eval loss",
}


class RunProgress(Rows):
    """The rows of a run, and its loop's observer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now)
        self._began = now()
        self._row = self.add_task("", total=None)
        self._loop: Loop | None = None
        self._names: list[str] = []
        self._compiling = False
        self.ended = False

    def begins(self, loop: Loop) -> None:
        """Note which loop it is, before its first step."""
        config: Any = getattr(loop.trainable, "config", None)
        self._names = [] if config is None else tasks_of(config)
        self._loop = loop
        self(loop)
        self.look()

    def __call__(self, loop: Loop) -> None:
        """Note what the next step will be."""
        self._compiling = getattr(loop.trainable, "about_to_compile", False)

    def look(self) -> None:
        """Read where the run is now."""
        loop, elapsed = self._loop, duration(self.get_time() - self._began)
        if loop is None:
            self.update(self._row, description=f"starting, {elapsed}")
            return
        compiles = self._compiling and loop.doing == "training" and not self.ended
        self.urgent = "compiling the update" if compiles else ""
        doing = f"done in {elapsed}" if self.ended else self.urgent or loop.doing
        self.update(self._row, description=doing, pauses=compiles)  # its time left is not known
        unit, total = _length(loop)
        done = loop.trainable.clock[unit]
        self.move(self._row, done, total, unit)
        scores = [f"{text} {loop.latest[k]:.3g}" for k, text in _SCORES.items() if k in loop.latest]
        self.details = [
            *(["up to a minute"] if compiles else []),
            *([] if self.ended else self._ahead(loop)),
            *scores,
            f"{done:,.0f} of {total:,.0f} {unit}",
        ]

    def _ahead(self, loop: Loop) -> Iterator[str]:
        """Yield in which of its phases the loop is, and what fires next."""
        phase, phases = loop.trainable.clock.phase, loop.hooks.horizon.phase
        if phases > 1:
            task = f": {self._names[phase]}" if phase < len(self._names) else ""
            yield f"phase {min(phase + 1, phases)}/{phases}{task}"
        if (following := loop.hooks.next_due(loop.trainable.clock)) is not None:
            name, at = following
            yield f"next: {name} at {clock_words({at.unit: at.value})}"


def _length(loop: Loop) -> tuple[str, float]:
    """Return the unit that progress is counted in, and how many there are."""
    updates = loop.hooks.horizon.updates
    agent: Any = getattr(getattr(loop.trainable, "config", None), "agent", None)
    long = loop.total.unit in ("epochs", "phase") or getattr(agent, "initial_updates", 0) > 0
    if long and updates > 0:
        return "updates", updates
    return loop.total.unit, loop.total.value


@contextmanager
def progress(now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Loop], None]]:
    """Show a run's progress while the block runs; yields the loop's observer."""
    if rank() > 0:
        yield lambda loop: None
        return
    watched = RunProgress(now)
    try:
        with watched.shown():
            yield watched
            watched.ended = True
    finally:
        watched._loop = None  # which holds environments and networks
