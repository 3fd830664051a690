"""Report: one page with curves, intervals, comparisons, costs and configs of many runs.

DIR is the folder of a study or of a run, or a folder with such folders in it. Beside report.html,
which needs no network, there are its pictures as SVG and PNG, and its numbers in summary.csv,
runs.csv and curves.csv.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column, Table

from rlplast.cli.output import new_console, warn
from rlplast.cli.tables import show
from rlplast.core.duration import counted

if TYPE_CHECKING:
    from rlplast.report.contents import Written

__all__ = ["add_arguments", "report", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="studies or runs")
    parser.add_argument("--out", type=Path, help="folder to write; default: DIR/report")


def run(args: argparse.Namespace) -> int:
    report(args.folders, args.out)
    return 0


def report(folders: Sequence[Path], out: Path | None = None) -> None:
    """Write a report, and print its numbers and where it is."""
    from rlplast.report import contents  # statistics and charts are slow to import

    written = contents.report(*folders, out=out, warn=lambda line: warn(f"rlplast: {line}"))
    show(_table(written))
    _say(written)


def _table(written: "Written") -> Table:
    from rlplast.report.numbers import estimate

    rows, baseline = written.summary, written.report.summary.baseline
    columns = ["task", "arm", Column("runs", justify="right"), Column("final", justify="right")]
    compared = rows.improvement.notna().any()
    won = f"P(improvement) over {baseline}"
    columns += [Column(won, justify="right")] if compared else []
    lost = rows.diverged.any()
    columns += [Column("diverged", justify="right")] if lost else []
    table = Table(*columns)
    for row in rows.to_dict("records"):
        cells = [row["task"], row["arm"], str(row["seeds"]), estimate(row, "final")]
        cells += [estimate(row, "improvement")] if compared else []
        table.add_row(*cells, *([str(row["diverged"])] if lost else []))
    return table


def _say(written: "Written") -> None:
    from rlplast.report.words import verdict_words

    console = new_console()
    for words in verdict_words(written.report.results, written.report.summary):
        console.print(words, highlight=False)
    missing = len(written.report.results.missing)
    if missing:
        console.print(f"{counted(missing, 'cell')} not done: the report names them")
    console.print(f"report: {written.page}", highlight=False, soft_wrap=True)
