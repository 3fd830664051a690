"""`rlplast study NAME --smoke`: every arm of a study for a moment, and what came out."""

import argparse
import time
from pathlib import Path

from rich.table import Column, Table

from rlplast.cli import report_command, study_command
from rlplast.cli.output import say
from rlplast.cli.tables import show
from rlplast.core.duration import counted
from rlplast.study import smoke
from rlplast.training.run_folder import numbered

__all__ = ["run_smoke"]


def run_smoke(args: argparse.Namespace) -> int:
    """Try a study out; returns 1 if a cell failed, a hook did not fire, a metric is missing."""
    began = time.monotonic()
    path = Path(args.out or numbered(Path("runs") / f"smoke-{Path(args.config).stem}-"))
    with study_command.shown(path) as callbacks:
        rows, faults = smoke.run_smoke(args.config, path, args.jobs, **callbacks)
    table = Table("cell", Column("seconds", justify="right"), "outcome")
    for name, seconds, words in rows:
        table.add_row(name, "-" if seconds is None else f"{seconds:.1f}", words)
    show(table)
    if any(words == "ok" for _, _, words in rows):
        report_command.report([path])
    verdict = f"{counted(faults, 'fault')}, see the table" if faults else "every arm runs"
    say(f"smoke: {verdict} ({time.monotonic() - began:.0f} s)")
    return int(faults > 0)
