"""The progress of a run: what it does, a bar, rate, time left, next firing, and scores.

On a terminal that is one line, which never wraps; elsewhere a plain line every 30 s.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlplast.cli.lines import GAP, Pace, bar, clock_time, count, fitted, middle, rate
from rlplast.cli.live import shown
from rlplast.core.clock import Time
from rlplast.run.tasks import tasks_of
from rlplast.training.distributed import rank
from rlplast.training.loop import Loop

__all__ = ["Reading", "RunProgress", "plain_line", "progress", "terminal_line"]

_COMPILING = "compiling the update: up to a minute"
_SCORES = {  # name in metrics → in the line
    "train/return": "return",
    "train/loss": "loss",
    "eval/return_mean": "eval return",
    "eval/accuracy": "eval accuracy",
    "eval/loss": "eval loss",
}
_BAR = 6, 30  # columns, fewest and most


@dataclasses.dataclass(frozen=True)
class Reading:
    """Where a run is.

    Attributes:
        doing: what it does, in words, the longest first.
        done: how much of `total` is done, in `unit`.
        rate: of that unit per second; None if not known yet.
        left: seconds until the end; None if not known.
        following: the method that fires next, and when.
        scores: the latest, in words.
    """

    doing: tuple[str, ...]
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    rate: float | None = None
    left: float | None = None
    following: tuple[str, Time] | None = None
    scores: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """How much is done, in [0, 1]."""
        return min(1.0, self.done / self.total) if self.total else 0.0


def terminal_line(reading: Reading, columns: int, plain: bool = False) -> str:
    """Return the line of a terminal with so many columns.

    Args:
        reading: what is said.
        columns: the line has no more.
        plain: whether the bar is of ASCII letters.
    """
    if not reading.unit:
        return middle(reading.doing[0], columns)
    ahead = [] if reading.rate is None else [[rate(reading.rate, reading.unit)]]
    ahead += [] if reading.left is None else [[f"{clock_time(reading.left)} left"]]
    if reading.following is not None:
        ahead.append(_following(*reading.following))
    amount = f"{reading.done:,.0f} of {reading.total:,.0f} {reading.unit}"
    figures = [[text] for text in (*reading.scores, amount)]
    phase = [*reading.doing, middle(reading.doing[-1], max(3, columns - 20))]
    parts = [phase, [f"{reading.share:.0%}"], *ahead, *figures]
    doing, *rest = fitted(parts, columns - _BAR[0] - 1) or phase[-1:]
    room = columns - len(GAP.join([doing, *rest])) - 1
    drawn = bar(reading.share, min(_BAR[1], max(0, room)), plain)
    return middle(GAP.join([f"{doing} {drawn}", *rest]), columns)


def _following(name: str, at: Time) -> list[str]:
    whole, short = f"{at.value:,} {at.unit}", count(at.value)
    if at.unit == "phase":
        whole = short = f"phase {at.value}"
    forms = [f"next: {name} at {whole}", f"next: {name} at {short}", f"{name} at {short}"]
    for most in (24, 10):
        forms += [f"{middle(name, most)} at {short}"]
    return forms


def plain_line(reading: Reading) -> str:
    """Return the line that says the same where there is no terminal."""
    if not reading.unit:
        return reading.doing[0]
    done = f"{reading.share:.0%} ({reading.done:,.0f} of {reading.total:,.0f} {reading.unit})"
    words = [f"{reading.doing[0]}: {done}"]
    words += [] if reading.rate is None else [rate(reading.rate, reading.unit)]
    words += [] if reading.left is None else [f"{clock_time(reading.left)} left"]
    words += [] if reading.following is None else [_following(*reading.following)[0]]
    return ", ".join([*words, *reading.scores])


class RunProgress:
    """Watches a run: its loop's observer; `reading` may be called by another thread.

    Args:
        now: a clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._pace = Pace()
        self._loop: Loop | None = None
        self._tasks: list[str] = []
        self.compiling = False
        self.ended = False

    def begins(self, loop: Loop) -> None:
        """Note which loop it is, before its first step."""
        self._loop = loop
        config: Any = getattr(loop.trainable, "config", None)
        self._tasks = [] if config is None else tasks_of(config)
        self._pace.add(self._now(), loop.trainable.clock[_length(loop)[0]])
        self(loop)

    def __call__(self, loop: Loop) -> None:
        """Note what the next step will be."""
        self.compiling = getattr(loop.trainable, "about_to_compile", False)

    def forget(self) -> None:
        """Let go of the loop, and of the environments and networks that it holds."""
        self._loop = None

    def reading(self) -> Reading:
        """Return where the run is now."""
        loop, now = self._loop, self._now()
        if loop is None:
            return Reading((f"starting, {clock_time(now - self._began)}",))
        clock, (unit, total) = loop.trainable.clock, _length(loop)
        self._pace.add(now, clock[unit])
        scores = [f"{text} {loop.latest[k]:.3g}" for k, text in _SCORES.items() if k in loop.latest]
        return Reading(
            doing=self._doing(loop, now),
            done=clock[unit],
            total=total,
            unit=unit,
            rate=self._pace.rate(),
            left=self._pace.left(now, total) if clock[unit] < total else None,
            following=None if self.ended else loop.hooks.next_due(clock),
            scores=tuple(scores),
        )

    def _doing(self, loop: Loop, now: float) -> tuple[str, ...]:
        """Return what the loop does, and in which of its phases, the longest words first."""
        if self.ended:
            return (f"done in {clock_time(now - self._began)}",)
        if self.compiling and loop.doing == "training":
            return (_COMPILING,)
        phase, phases = loop.trainable.clock.phase, loop.hooks.horizon.phase
        if phases < 2:
            return (loop.doing,)
        brief = f"{loop.doing} {min(phase + 1, phases)}/{phases}"
        if len(self._tasks) <= phase:
            return (f"{loop.doing}, phase {brief.split()[-1]}", brief)
        task = self._tasks[phase]
        return (f"{brief} {task}", f"{brief} {middle(task, 16)}", brief)


def _length(loop: Loop) -> tuple[str, float]:
    """Return the unit that progress is counted in, and how many there are.

    An epoch or a phase may last for hours: updates are counted instead where their number is known.
    """
    updates = loop.hooks.horizon.updates
    if loop.total.unit in ("epochs", "phase") and updates > 0:
        return "updates", updates
    return loop.total.unit, loop.total.value


@contextmanager
def progress(now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Loop], None]]:
    """Show a run's progress while the block runs; yields the loop's observer.

    Args:
        now: a clock, in seconds.
    """
    if rank() > 0:
        yield lambda loop: None
        return
    watched = RunProgress(now)

    def screen(columns: int, rows: int, ascii_only: bool) -> list[str]:
        return [terminal_line(watched.reading(), columns, ascii_only)]

    def plain() -> str:
        return plain_line(watched.reading())

    try:
        with shown(screen, plain, lambda: _COMPILING if watched.compiling else "", now):
            yield watched
            watched.ended = True
    finally:
        watched.forget()
