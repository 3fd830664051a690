"""Compare: what two runs differ in, and whether they are equal bit for bit.

The exit code is 0 whether they differ or not. Wall-clock values (`time/…`) do not count.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rlplast.cli.output import new_console, show_json, visible
from rlplast.cli.tables import clock_words, figure, show_rows
from rlplast.core.duration import counted

__all__ = ["add_arguments", "run"]


_TITLES = {  # of what differs
    "config": "settings that change training",
    "free": "other settings, such as the seed and what is measured",
    "made_with": "versions and machine",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN", help="folders of two runs")
    parser.add_argument("--json", action="store_true", help="print data, not text")


def run(args: argparse.Namespace) -> int:
    from rlplast.report.two_runs import compare  # statistics are slow to import

    found = compare(*args.runs)
    if args.json:
        show_json(found)
        return 0
    console = new_console()
    for name, folder in zip("AB", found["runs"], strict=True):
        _say(console, f"{name}  {folder}")
    for key, title in _TITLES.items():
        _pairs(console, title, found[key])
    _pairs(console, "results", _results(found), "")
    console.print()
    show_rows(console, _verdict(found))
    return 0


def _results(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the results in words, and what either run evaluated last."""
    result, rows = found["result"], {"status": [str(value) for value in found["status"]]}
    rows["score"] = [str(value or "none") for value in result["score"]]
    for key in ("final", "updates", "seconds"):
        rows[key] = [figure(v) if key != "updates" else f"{v:,}" for v in result[key]]
    lines = [row or {} for row in result["evaluation"]]
    for key in dict.fromkeys(key for row in lines for key in row if key.startswith("eval/")):
        rows[f"last {key}"] = [figure(row.get(key)) for row in lines]
    return rows


def _pairs(
    console: Console, title: str, pairs: Mapping[str, Sequence[Any]], none: str = ": equal"
) -> None:
    """Print pairs below each other; long ones go on in their own column."""
    console.print()
    _say(console, title if pairs else f"{title}{none}", "bold")
    if not pairs:
        return
    heads = (Column(head, overflow="fold") for head in ("", "A", "B"))
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for key, pair in pairs.items():
        table.add_row(*map(str, (key, *pair)))
    console.print(table)


def _verdict(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say whether the runs are equal, or where they part."""
    parted = {name: found[name]["first"] for name in ("metrics", "receipts")}
    if any(parted.values()):
        return [(name, _first(first)) for name, first in parted.items() if first is not None]
    metrics, receipts = (found[name]["lines"][0] for name in parted)
    if metrics == receipts == 0:
        return [("metrics", "neither run has a line of metrics or a receipt to compare")]
    lines = f"{counted(metrics, 'line')} of metrics, {counted(receipts, 'receipt')}"
    return [("equal", f"bit for bit: {lines}")]


def _first(first: Mapping[str, Any]) -> str:
    if first["key"] == "clock":
        one, other = map(clock_words, first["values"])
        return f"line {first['line']} is at {one} in A, at {other} in B"
    if first["key"] == "the line":
        only = "A" if first["values"][0] == "there" else "B"
        return f"line {first['line']}, at {clock_words(first['clock'])}, is only in {only}"
    one, other = _distinct_texts(first["values"])
    return f"first differ at {clock_words(first['clock'])}: {first['key']} {one} in A, {other} in B"


def _distinct_texts(values: Sequence[Any]) -> list[str]:
    """Return two values in four digits, or in all where those are equal."""
    short = [figure(v) if isinstance(v, float) else str(v) for v in values]
    return short if short[0] != short[1] else [str(v) for v in values]


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), overflow="fold"), style=style, highlight=False)
