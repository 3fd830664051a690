"""Report: one page with curves, intervals, comparisons, costs and configs of many runs.

DIR is the folder of a study or of a run, or a folder with such folders in it. Beside report.html,
which needs no network, there are its pictures as SVG and PNG, and its numbers in summary.csv.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rlplast import __version__
from rlplast.cli.tables import counted, show
from rlplast.core.errors import ConfigError

if TYPE_CHECKING:
    from rlplast.report.gather import Gathered
    from rlplast.report.summary import Summary

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="studies or runs")
    parser.add_argument("--out", type=Path, help="folder to write; default: DIR/report")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    out = args.folders[0] / "report" if args.out is None else args.out
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: allowed is a folder, which may be new")
    # statistics and pictures are slow to import, and other commands need neither
    from rlplast.report.contents import write_report
    from rlplast.report.gather import gather
    from rlplast.report.summary import summarise

    gathered = gather(args.folders)
    summary = summarise(gathered)
    page = write_report(gathered, summary, out, f"rlplast {__version__}")
    show(_table(summary))
    _say(gathered, page)
    return 0


def _table(summary: "Summary") -> Table:
    from rlplast.report.records import estimate

    compared = any(row.improvement is not None for row in summary.rows)
    columns = ["task", "arm", Column("runs", justify="right"), Column("final", justify="right")]
    columns += [Column(f"better than {summary.baseline}", justify="right")] if compared else []
    table = Table(*columns)
    for rows in (summary.rows, summary.aggregates):
        for row in rows:
            cells = [row.task, row.arm, str(row.seeds), estimate(row.final)]
            cells += [estimate(row.improvement)] if compared else []
            table.add_row(*(Text(cell) for cell in cells))  # names are no markup
        table.add_section()
    return table


def _say(gathered: "Gathered", page: Path) -> None:
    console = Console()
    missing = len(gathered.missing)
    if missing:
        console.print(f"{counted(missing, 'cell')} not done: the report names them")
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
