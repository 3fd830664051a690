"""Compare: what two runs differ in, and whether they are equal bit for bit.

The exit code is 0 whether they differ or not. Wall-clock values (`time/…`) do not count.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlplast.cli.tables import counted, figure, show_json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN", help="folders of two runs")
    parser.add_argument("--json", action="store_true", help="print data, not text")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rlplast.report.compare import compare  # statistics are slow to import

    found = compare(*args.runs)
    if args.json:
        show_json(found)
        return 0
    console = Console()
    for name, folder in zip("AB", found["runs"], strict=True):
        _say(console, f"{name}  {folder}")
    if found["kinds"][0] != found["kinds"][1]:
        _say(console, f"runs of different kinds: {found['kinds'][0]} and {found['kinds'][1]}")
    titles = {
        "config": "config",
        "free": "config that does not change what is trained",
        "made_with": "versions and machine",
    }
    for key, title in titles.items():
        _pairs(console, title, found[key])
    _pairs(console, "result", _results(found), "")
    _say(console, _verdict(found))
    return 0


def _results(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the results in words; of the newest evaluations what either has."""
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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("", "A", "B"):
        table.add_column(head, overflow="fold")
    for key, pair in pairs.items():
        table.add_row(*(Text(str(text)) for text in (key, *pair)))  # names are no markup
    console.print(table)


def _verdict(found: Mapping[str, Any]) -> str:
    """Say whether the runs are equal, or where they part."""
    parts = []
    for name in ("metrics", "receipts"):
        first = found[name]["first"]
        if first is None:
            continue
        when = ", ".join(f"{unit} {count}" for unit, count in first["clock"].items())
        values = ", ".join(map(str, first["values"]))
        parts.append(
            f"{name}: first difference at {when or 'no clock'} in {first['key']}: {values} "
            f"(line {first['line']})"
        )
    if parts:
        return "\n".join(parts)
    metrics, receipts = (found[name]["lines"][0] for name in ("metrics", "receipts"))
    lines = counted(metrics, "line")
    return f"equal bit for bit: {lines} of metrics, {counted(receipts, 'receipt')}"


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, overflow="fold"), style=style, highlight=False)
