"""What a command says while it works: rows that are redrawn, or plain lines from time to time."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from rlplast.cli.output import new_console, visible, warn
from rlplast.cli.tables import rate
from rlplast.core.duration import duration

__all__ = ["Rows", "counted_shown", "step_shown"]

FIRST, EVERY = 4.0, 30.0  # seconds until the first plain line, and from one to the next
_BEAT = 0.5  # seconds between two looks at whether one is due
_WINDOW = 30.0  # seconds that a rate is measured over, at least
_NAMED = 9  # tasks in a plain line


def _share(task: Task) -> str:
    return task.fields.get("waiting", "") if task.total is None else f"{task.percentage:.0f}%"


def _rate(task: Task) -> str:
    unit = "" if task.fields.get("pauses") else task.fields.get("unit")
    return rate(task.speed * task.fields["scale"], unit) if task.speed and unit else ""


def _left(task: Task) -> str:
    if not task.speed or not task.remaining or task.fields.get("pauses"):
        return ""
    since = task.get_time() - task.fields["moved"]
    return f"{duration(max(0.0, task.remaining / task.speed - since))} left"


class _Name(ProgressColumn):
    """A task's name, whose end is cut off where a row has no room for it."""

    def render(self, task: Task) -> Text:
        return Text(visible(task.description), no_wrap=True, overflow="ellipsis")


class _Figures(ProgressColumn):
    def __init__(self, figure: Callable[[Task], str]) -> None:
        super().__init__(Column(no_wrap=True, justify="right"))
        self.figure = figure

    def render(self, task: Task) -> Text:
        return Text(self.figure(task))


class Rows(Progress):
    """Rows on stderr, one for each task: its name, a bar, its share, rate and time left.

    They are redrawn in place on a terminal, and are as long as it is wide at the moment. Elsewhere
    a plain line says the same after 4 s and every 30 s. The last ones stay after `shown`, if told
    so.

    Attributes:
        details: what a line under the first row says, the most important first.
        urgent: what a plain line should say at once, in any words that differ; or "".
    """

    details: Sequence[str] = ()
    urgent = ""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, bar: int = 30, stays: bool = True
    ) -> None:
        console = new_console(stderr=True)
        super().__init__(
            _Name(Column()),
            BarColumn(bar, table_column=Column()),
            *map(_Figures, (_share, _rate, _left)),
            console=console,
            refresh_per_second=5,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),
            get_time=now,
            disable=not sys.stderr.isatty() or console.is_dumb_terminal,
        )
        self._stays, self._out = stays, sys.stderr

    def look(self) -> None:
        """Bring tasks and details up to date; called by another thread."""

    def move(self, number: TaskID, done: float, total: float, unit: str, scale: float = 1) -> None:
        """Note how far a task is.

        Its rate is that of the later part of its time: what is slow at first (or fast, as an agent
        before its first update) is soon forgotten, and pauses count. It is in `unit`, of which
        `done` has `scale` each; without a unit none is shown.
        """
        task, now = next(task for task in self.tasks if task.id == number), self.get_time()
        self.speed_estimate_period = max(_WINDOW, (task.elapsed or 0.0) * 2 / 3)
        # Rich keeps 1,000 samples of a task: of a long one they are to be further apart.
        apart = (self.speed_estimate_period - _WINDOW) / 1000
        late = now >= task.fields.get("moved", now) + apart or done >= total
        if task.total is None or (late and done != task.completed):
            about = {"unit": unit, "scale": scale, "moved": now}
            self.update(number, completed=done, total=total, **about)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield what is drawn."""
        if tasks := self.tasks:  # rich also asks while it is made
            self.look()
            yield self.make_tasks_table(tasks[:1])
        if self.details:
            words = visible("  ".join(["", *self.details] if tasks else self.details))
            yield Text(words, no_wrap=True, overflow="ellipsis")
        yield from [self.make_tasks_table(tasks[1:])] if tasks[1:] else []

    def plain(self) -> str:
        """Return the line that says the same where there is no terminal."""
        self.look()
        parts = []
        for task in self.tasks[:_NAMED]:
            words = [word for figure in (_share, _rate, _left) if (word := figure(task))]
            words += self.details if not parts else []
            parts.append(": ".join([task.description, *([", ".join(words)] if words else [])]))
        more = len(self.tasks) - _NAMED
        return "; ".join([*(parts or self.details), *([f"and {more} more"] if more > 0 else [])])

    def say(self, text: str) -> None:
        """Say what has happened, above the rows."""
        if self.disable:
            warn(text, self._out)
        else:
            with suppress(OSError):  # the terminal is gone
                self.console.print(text, highlight=False)

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the rows while the block runs.

        Without a terminal, the last line is left out if the block fails, or if there was none
        before.
        """
        if not self.disable:
            self.start()
            try:
                yield self
            finally:
                with suppress(OSError):
                    self.stop()
            return
        printed, ended = False, threading.Event()

        def speak() -> None:
            nonlocal printed
            due, before = self.get_time() + FIRST, ""
            while not ended.wait(_BEAT):
                line, now, urgent = self.plain(), self.get_time(), self.urgent
                if now >= due or urgent not in ("", before):
                    due, printed = now + EVERY, True
                    self.say(line)
                before = urgent

        thread = threading.Thread(target=speak, name="rlplast-progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()
        if printed and self._stays:
            self.say(self.plain())


@contextmanager
def counted_shown(*columns: str | ProgressColumn) -> Iterator[Callable[..., None]]:
    """Show a count on a terminal; yields what takes how much more is done, and the whole."""
    bar = Progress(*columns, console=new_console(stderr=True), disable=not sys.stderr.isatty())
    task = bar.add_task("", total=None)
    with bar:
        yield lambda more, total=None: bar.update(task, advance=more, total=total)


@contextmanager
def step_shown() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is done while the block runs; yields a function that takes the text."""
    with Rows(stays=False).shown() as rows:
        yield lambda text: setattr(rows, "details", [text])
