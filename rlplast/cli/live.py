"""What a command says while it works: lines that are redrawn, or plain ones from time to time.

- `shown`: either, for as long as a block runs; `step_shown`: only what is done just now.
- `Plain`: when a plain line is due; the time is its argument.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from rlplast.cli.lines import middle
from rlplast.cli.output import new_console, visible, warn

__all__ = ["Plain", "shown", "step_shown"]

FIRST, EVERY = 4.0, 30.0  # seconds until the first plain line, and from one to the next
_BEAT = 0.5  # seconds between two looks at whether one is due

Screen = Callable[[int, int, bool], Sequence[str]]


class Plain:
    """When a plain line is due.

    Args:
        now: the time at the start, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.due_at = now + FIRST
        self.said = False
        self._urgent = ""

    def due(self, now: float, urgent: str = "") -> bool:
        """Return whether a line is due now; it is then taken as said.

        Args:
            now: the time, in seconds.
            urgent: what should not wait for its time, such as a long compilation; said once.
        """
        fresh = urgent not in ("", self._urgent)
        self._urgent = urgent
        if not fresh and now < self.due_at:
            return False
        self.due_at = now + EVERY
        self.said = True
        return True


@contextmanager
def shown(
    screen: Screen,
    plain: Callable[[], str],
    urgent: Callable[[], str] = str,
    now: Callable[[], float] = time.monotonic,
    *,
    stays: bool = True,
) -> Iterator[Callable[[str], None]]:
    """Show on stderr what a command does while the block runs; yields what says an event.

    On a terminal lines are redrawn in place. Else a plain line is said after 4 s and every 30 s,
    and after the block, unless it fails or was so short that there was none before.

    Args:
        screen: (columns, rows, whether only ASCII is understood) → the lines of a terminal.
        plain: returns the line to be said elsewhere.
        urgent: returns what a plain line should say at once, in any words that differ; or "".
        now: a clock, in seconds.
        stays: whether the last lines stay, or are said, after the block.
    """
    console = new_console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        live = Live(
            get_renderable=lambda: _Lines(screen),
            console=console,
            refresh_per_second=5,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),
        )

        def print_above(text: str) -> None:
            with suppress(OSError):  # the terminal is gone
                console.print(text, highlight=False)

        live.start()
        try:
            yield print_above
        finally:
            with suppress(OSError):
                live.stop()
        return
    state, ended, out = Plain(now()), threading.Event(), sys.stderr

    def speak() -> None:
        while not ended.wait(_BEAT):
            if state.due(now(), urgent()):
                say(plain())

    def say(text: str) -> None:
        warn(text, out)

    thread = threading.Thread(target=speak, name="rlplast-progress", daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join()
    if state.said and stays:
        say(plain())


@contextmanager
def step_shown() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is done while the block runs; yields what is to be told of it."""
    step = [""]

    def screen(columns: int, rows: int, ascii_only: bool) -> list[str]:
        return [middle(step[0], columns)]

    with shown(screen, lambda: step[0], stays=False):
        yield lambda text: step.__setitem__(0, text)


class _Lines:
    """The lines of a screen, as many and as long as the terminal has room for at the moment."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self.screen(options.max_width, options.size.height - 1, options.ascii_only)
        for line in lines[: options.size.height - 1]:
            text = Text(visible(line), no_wrap=True, overflow="crop")
            text.highlight_regex(r"━+", "bar.complete")
            text.highlight_regex(r"[╺─]+", "bar.back")
            yield text
