"""`rlplast study NAME --smoke`: every arm of a study for a moment, on data of no meaning.

Nothing that comes out is a result. It shows that each arm runs: that packages are there, hooks
fire, metrics are measured and a report is written.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Column, Table

from rlplast.cli import cell as cells_main
from rlplast.cli import report_command
from rlplast.cli.errors import stoppable
from rlplast.cli.live import step_shown
from rlplast.cli.output import say
from rlplast.cli.study_cells import build_each, planned_runs, read_study_config, write_study
from rlplast.cli.study_progress import study_progress
from rlplast.cli.tables import counted, show
from rlplast.core.errors import ConfigError, Interrupted
from rlplast.run.info import versions
from rlplast.run.made_data import make_data
from rlplast.run.read import read_lines
from rlplast.run.shrink import shrunk
from rlplast.study.executors import make_executor
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.scheduler import Failure, Stopped, run_cells
from rlplast.study.smoke import faults_of, shrunk_study, unmeasured
from rlplast.study.spec import StudyConfig
from rlplast.training.run_folder import numbered

__all__ = ["run_smoke", "smoke_runs"]


def run_smoke(args: argparse.Namespace) -> int:
    """Try a study out; returns 1 if a cell failed, a hook did not fire, a metric is missing."""
    began = time.monotonic()
    study = shrunk_study(read_study_config(args.config))
    path = _folder(args)
    runs, same = smoke_runs(study, path / "data")
    cells = plan(runs)
    folder = StudyFolder(path)
    try:
        folder.open_for(versions())
        try:
            for run in runs:
                make_data(run.config)
            with step_shown() as told:
                build_each(cells, told)
        except ConfigError:
            shutil.rmtree(path / "data", ignore_errors=True)
            raise
        write_study(folder, study, cells, args.config, smoke=True)
        failures = _run(folder, cells, args)
    finally:
        folder.close()
    wrong = _show(cells, failures, path, same)
    if len(failures) < len(cells):
        report_command.report([path], path / "report")
    seconds = time.monotonic() - began
    verdict = "every arm runs" if not wrong else f"{counted(wrong, 'fault')}, see the table"
    say(f"smoke: {verdict} ({seconds:.0f} s)")
    return int(wrong > 0)


def _folder(args: argparse.Namespace) -> Path:
    """Return where the study goes: a new folder, since what is there may be of other code.

    Raises:
        ConfigError: if --out is not empty.
    """
    if args.out is None:
        path = Path("runs") / f"smoke-{Path(args.config).stem}"
        return numbered(path.with_name(f"{path.name}-")) if path.exists() else path
    path = Path(args.out)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--out {path} is not empty: --smoke begins anew, choose another one")
    return path


def smoke_runs(study: StudyConfig, data: Path) -> tuple[list[PlannedRun], dict[str, str]]:
    """Return a study's runs made small, and which are left out since they are equal to another.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    first: dict[str, PlannedRun] = {}
    same: dict[str, str] = {}
    for run in planned_runs(study):
        try:
            config = shrunk(run.config, data.resolve())
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}, made small: {error}") from error
        small = PlannedRun(run.task, run.seed, run.arm, config)
        key = json.dumps(vars(config), default=vars, sort_keys=True)
        other = first.setdefault(key, small)
        if other is not small:
            same[_name(small)] = _name(other)
    return list(first.values()), same


def _name(run: PlannedRun) -> str:
    return "/".join(part for part in (run.task, f"seed-{run.seed}", run.arm) if part)


def _run(folder: StudyFolder, cells: Sequence[Cell], args: argparse.Namespace) -> list[Failure]:
    """Run all cells, as many at once as there are cores.

    Raises:
        Interrupted: after SIGINT or SIGTERM.
    """
    imports = tuple(word for module in args.modules for word in ("--import", module))
    where = str(folder.path.resolve())
    executor = make_executor("local", args.jobs, 1, {}, cells_main.main)
    try:
        with stoppable(), study_progress(folder.path) as observer:
            return run_cells(
                cells, folder, executor, lambda c: (where, c.key, *imports), 0, observer
            )
    except Stopped as stopped:
        raise Interrupted(f"stopped; nothing of {folder.path} is of use: delete it") from stopped
    finally:
        executor.close()


def _show(
    cells: Sequence[Cell], failures: Sequence[Failure], path: Path, same: dict[str, str]
) -> int:
    """Print a line for each cell; returns how many faults there are."""
    seconds = {
        row["cell"]: row["seconds"]
        for row in read_lines(path / "journal.jsonl")
        if "seconds" in row
    }
    reasons = {failure.cell.key: failure.reason for failure in failures}
    table = Table("cell", Column("seconds", justify="right"), "outcome")
    faults = 0
    for cell in cells:
        wrong = [reasons[cell.key]] if cell.key in reasons else []
        if not wrong and cell.arm is not None:
            wrong = faults_of(cell, path)
        faults += len(wrong)
        took = f"{seconds[cell.key]:.1f}" if cell.key in seconds else "-"
        table.add_row(cell.name, took, "; ".join(wrong) or "ok")
    for name, other in same.items():
        table.add_row(name, "-", f"the same as {other} when made small")
    done = [cell for cell in cells if cell.key not in reasons]
    missing = unmeasured([cell for cell in done if cell.arm is not None], path)
    if missing:
        table.add_row("metrics", "-", f"never measured: {', '.join(missing)}")
    show(table)
    return faults + len(missing)
