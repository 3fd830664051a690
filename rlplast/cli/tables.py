"""Tables for people, and JSON for programs.

- `show_json`: print a value as ``--json`` says.
- `show`: print one table, unwrapped where the output is not a terminal.
- `figure`: a number in a cell.
- `counted`: a number with its noun.
"""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["counted", "figure", "show", "show_json"]

_UNWRAPPED = 10_000  # columns; a table only takes what it needs


def show_json(value: Any) -> None:
    """Print JSON; a number that is not finite is an error."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show(table: Table, width: int = _UNWRAPPED) -> None:
    """Print a table: fitted to a terminal, with whole lines into a file or pipe.

    Args:
        table: the table.
        width: columns at which lines into a file or pipe are wrapped after all.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=width)
    console.print(table)


def figure(value: float | None) -> str:
    """Return a number with four significant digits, or a dash where there is none.

    Examples:
        >>> figure(0.123456), figure(None)
        ('0.1235', '-')
    """
    return "-" if value is None else f"{value:.4g}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> counted(1, "episode"), counted(2, "episode")
        ('1 episode', '2 episodes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
