"""Tables for people; programs read ``--json`` instead.

- `show`: print one table, unwrapped where the output is not a terminal.
- `figure`: a number in a cell.
"""

from rich.console import Console
from rich.table import Table

__all__ = ["figure", "show"]

_UNWRAPPED = 10_000  # columns; a table only takes what it needs


def show(table: Table) -> None:
    """Print a table: fitted to a terminal, with whole lines into a file or pipe."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNWRAPPED)
    console.print(table)


def figure(value: float | None) -> str:
    """Return a number with four significant digits, or a dash where there is none.

    Examples:
        >>> figure(0.123456), figure(None)
        ('0.1235', '-')
    """
    return "-" if value is None else f"{value:.4g}"
