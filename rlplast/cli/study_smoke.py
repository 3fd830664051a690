"""`rlplast study NAME --smoke`: every arm of a study for a moment, and what came out."""

import argparse
import time

from rich.table import Column, Table

from rlplast.cli import report_command, study_command
from rlplast.cli.output import say
from rlplast.cli.tables import counted, show
from rlplast.study import smoke

__all__ = ["run_smoke"]


def run_smoke(args: argparse.Namespace) -> int:
    """Try a study out; returns 1 if a cell failed, a hook did not fire, a metric is missing."""
    began, path = time.monotonic(), smoke.smoke_folder(args.config, args.out)
    with study_command.shown(path) as callbacks:
        found = smoke.run_smoke(args.config, path, args.jobs, **callbacks)
    _show(found)
    if found.ran:
        report_command.report([path])
    seconds = time.monotonic() - began
    verdict = "every arm runs"
    if found.faults:
        verdict = f"{counted(found.faults, 'fault')}, see the table"
    say(f"smoke: {verdict} ({seconds:.0f} s)")
    return int(found.faults > 0)


def _show(found: smoke.Smoke) -> None:
    """Print a line for each cell."""
    table = Table("cell", Column("seconds", justify="right"), "outcome")
    for name, seconds, wrong in found.cells:
        table.add_row(name, "-" if seconds is None else f"{seconds:.1f}", "; ".join(wrong) or "ok")
    for name, other in found.same.items():
        table.add_row(name, "-", f"the same as {other} when made small")
    if found.unmeasured:
        table.add_row("metrics", "-", f"never measured: {', '.join(found.unmeasured)}")
    if found.untried:
        table.add_row("not tried", "-", "; ".join(found.untried))
    show(table)
