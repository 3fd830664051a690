"""Everything that a command prints. What a terminal would obey is shown as an escape instead.

Names in configs, run folders and files are whatever somebody wrote there: they may hold letters
that move the cursor, or brackets that look like rich's markup.
"""

import json
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rlplast.run.messages import OBEYED, say, visible, warn

__all__ = ["new_console", "safe_warnings", "say", "show_error", "show_json", "visible", "warn"]

_PACKAGE = Path(__file__).parents[1]


def show_json(value: Any) -> None:
    """Print JSON; a number that is not finite is an error."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    print(OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


class _Console(Console):
    """A rich console that takes no text for markup or control codes."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as it is printed and measured."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the parts of what is printed; rich's own codes are kept."""
        for own in super().render(renderable, options):
            yield own if own.control else Segment(visible(own.text), own.style)


def new_console(stderr: bool = False, width: int | None = None) -> Console:
    """Return a rich console; without a width as wide as the terminal."""
    return _Console(stderr=stderr, width=width, markup=False, emoji=False)


@contextmanager
def safe_warnings() -> Iterator[None]:
    """Let Python's warnings be printed like everything else while the block runs."""
    before = warnings.formatwarning

    def shown(message: Warning | str, category: type[Warning], filename: str, *about: Any) -> str:
        own = Path(filename).is_relative_to(_PACKAGE)  # where in our code it is helps nobody
        text = f"rlplast: {message}\n" if own else before(message, category, filename, *about)
        return visible(text)

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = before


def show_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of an error that nobody has caught, as `sys.excepthook`."""
    warn("".join(traceback.format_exception(kind, error, trace)).rstrip())
