"""Tables, numbers and names for people."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rlplast.cli.output import new_console, visible
from rlplast.core.clock import UNITS

__all__ = [
    "clock_words",
    "columns",
    "count",
    "figure",
    "rate",
    "receipt_table",
    "show",
    "show_rows",
    "size",
]

_WIDE = 100  # columns
_NAMES = 13  # columns of a row's name
_UNWRAPPED = 10_000  # columns; a table only takes what it needs


def show(table: Table) -> None:
    """Print a table: fitted to a terminal, with whole lines into a file or pipe."""
    console = new_console()
    if not console.is_terminal:
        console = new_console(width=_UNWRAPPED)
    console.print(table)


def columns(piped: int) -> int:
    """Return how wide a terminal is, or `piped` for a file or pipe; COLUMNS is obeyed."""
    console = new_console()
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else piped


def show_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print names of up to 12 letters with their values, which go on in a column of their own."""
    for name, value in rows:
        lines = Text(visible(str(value))).wrap(
            console, max(1, console.width - _NAMES), overflow="fold"
        )
        for number, line in enumerate(lines):
            head = "" if number else name
            whole = Text.assemble((f"{head:<{_NAMES}}", "bold"), line)
            whole.rstrip()
            console.print(whole)


def clock_words(counts: Mapping[str, Any]) -> str:
    """Return a clock as people say it; other keys are left out.

    Examples:
        >>> clock_words({"updates": 2000, "phase": 3, "train/loss": 0.5})
        '2,000 updates, phase 3'
    """
    return ", ".join(
        f"phase {counts[unit]}" if unit == "phase" else f"{counts[unit]:,} {unit}"
        for unit in UNITS
        if unit in counts
    )


def figure(value: float | None) -> str:
    """Return a number with four significant digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.4g}"


def size(count: float) -> str:
    """Return a number of bytes as people say it.

    Examples:
        >>> size(999), size(2.5e6), size(7.1e9)
        ('1 kB', '2 MB', '7.1 GB')
    """
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def count(number: float) -> str:
    """Return a count in few letters.

    Examples:
        >>> count(850), count(3000), count(12_345), count(2_252_800)
        ('850', '3k', '12.3k', '2.25M')
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def rate(per_second: float, unit: str) -> str:
    """Return a rate with its unit.

    Examples:
        >>> rate(67.4, "env_steps"), rate(0.4, "epochs"), rate(0.001, "updates")
        ('67 env_steps/s', '24 epochs/min', '3.6 updates/h')
    """
    for seconds, letter in ((1, "s"), (60, "min"), (3600, "h")):
        value = per_second * seconds
        if value >= 1 or letter == "h":
            break
    return f"{f'{value:.2g}' if value < 10 else count(value)} {unit}/{letter}"


def receipt_table(receipts: Sequence[dict[str, Any]], unit: str, width: int) -> Table:
    """Return a table of firings; `unit` says when, seconds are left out of a narrow one."""
    heads = {"sfe": "SFE"}
    if any(row.get("units") for row in receipts):
        heads["units"] = "units\nreset"
    if any(row["dfi_after"] is not None for row in receipts):
        heads |= {"dfi_before": "DfI\nbefore", "dfi_after": "DfI\nafter"}
    if width >= _WIDE:
        heads["time/seconds"] = "seconds"
    # Without lines the longest names and numbers of ours fit into 80 columns.
    columns = [Column("method", no_wrap=True, overflow="fold")]
    columns += [Column(head, overflow="fold") for head in ("network", "at")]
    numbers: Any = {"justify": "right", "no_wrap": True, "overflow": "fold"}
    columns += [Column(head, **numbers) for head in heads.values()]
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in receipts:
        at = f"{row['clock'][unit]:,} {unit}"
        units = None if row.get("units") is None else sum(row["units"].values())
        values = [units if key == "units" else row[key] for key in heads]
        table.add_row(str(row["method"]), str(row["network"]), at, *map(figure, values))
    return table
