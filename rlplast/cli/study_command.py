"""Study: compare arms, and train what they share only once.

CONFIG is a file, or a shipped name such as study/demo. It names a base config, tasks, seeds and
arms. Finished runs are skipped. So the same command continues after an interruption, and after you
change the file it runs only what is new. Then `rlplast report DIR` shows the results.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlplast.cli.errors import stoppable
from rlplast.cli.live import step_shown
from rlplast.cli.output import new_console, say
from rlplast.cli.study_cells import (
    build_each,
    read_study_config,
    study_cells,
    study_folder,
    write_study,
)
from rlplast.cli.study_progress import study_progress
from rlplast.cli.study_search import drawn_trials, open_trials, said_of_search, show_best
from rlplast.cli.study_tree import show_plan
from rlplast.cli.tables import counted
from rlplast.core.errors import ConfigError, Interrupted
from rlplast.run.info import versions
from rlplast.study.executors import Executor, make_executor
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell
from rlplast.study.scheduler import Failure, Stopped, Supply, pending, run_cells
from rlplast.study.spec import StudyConfig

__all__ = ["add_arguments", "read_study_config", "run", "study_cells"]

# What a cell runs is the code that planned it, whatever lies in the current folder.
_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from rlplast.cli.cell import main; sys.exit(main())",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("config", metavar="CONFIG", help="file or shipped name")
    parser.add_argument("--out", help="the study's folder; default: runs/NAME of the config")
    parser.add_argument("--executor", help="local, ray or slurm; default: the config's")
    parser.add_argument(
        "--jobs", type=int, help="runs at the same time; default: as many as the cores allow"
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="check every arm, show cells, steps, time and disk space, and exit",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="try every arm for a moment, on synthetic data"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs {args.jobs}: allowed is at least 1")
    # Both import more than other commands need.
    if args.smoke:
        from rlplast.cli.study_smoke import run_smoke

        return run_smoke(args)
    if args.plan:
        from rlplast.cli.study_plan import run_plan

        return run_plan(args, lambda study, threads: _executor(study, threads, args).close())
    study = read_study_config(args.config)
    cells = study_cells(study)
    first = drawn_trials(study, 1)  # they stand for all trials of their arm
    console = new_console()
    if cells:
        show_plan(console, cells)
    for line in said_of_search(study):
        say(line)
    threads = max(cell.config.threads for cell in (*cells, *first))
    path = study_folder(args)
    folder = StudyFolder(path)
    try:
        folder.open_for(versions())
        left = pending(cells, path)
        with step_shown() as told:
            levels = build_each([*left, *first], told, study.processes)
        for line in levels:
            say(line)
        trials = open_trials(study, cells, folder, args.config)
        over = trials is None or trials.finished()
        if not left and over:
            console.print(f"{path} is done: `rlplast report {path}`", soft_wrap=True)
        executor = _executor(study, threads, args)
        try:
            known = trials.known() if trials is not None else []
            write_study(folder, study, [*cells, *known], args.config)
            failures = _run(folder, cells, executor, study, args, trials)
        finally:
            executor.close()
    finally:
        folder.close()
    if trials is not None:
        show_best(trials.searches, path)
    tried = {cell.key for cell in trials.known()} if trials is not None else set[str]()
    _show_failures(console, failures, tried)
    if failures:
        return 1
    if left or not over:
        console.print(f"study: {path}   next: `rlplast report {path}`", soft_wrap=True)
    return 0


def _run(
    folder: StudyFolder,
    cells: Sequence[Cell],
    executor: Executor,
    study: StudyConfig,
    args: argparse.Namespace,
    trials: Supply | None,
) -> list[Failure]:
    """Run what is not done; a signal stops the running cells once they have saved.

    Raises:
        Interrupted: after SIGINT or SIGTERM.
    """
    imports = tuple(word for module in args.modules for word in ("--import", module))
    program = () if _kind(study, args) == "local" else _PROGRAM

    def command(cell: Cell) -> tuple[str, ...]:
        several = ("--processes", str(study.processes)) if study.processes > 1 else ()
        return (*program, str(folder.path.resolve()), cell.key, *imports, *several)

    try:
        with stoppable(), study_progress(folder.path) as observer:
            return run_cells(cells, folder, executor, command, study.retries, observer, trials)
    except Stopped as interruption:
        stopped = counted(interruption.cells, "running cell")
        raise Interrupted(
            f"{stopped} stopped: the same command goes on with {folder.path} from their newest "
            "checkpoints"
        ) from interruption


def _executor(study: StudyConfig, threads: int, args: argparse.Namespace) -> Executor:
    from rlplast.cli.cell import main  # imports everything that trains, as do those above

    options, kind = {k: v for k, v in study.executor.items() if k != "kind"}, _kind(study, args)
    if kind != study.executor.get("kind", "local"):
        options = {}  # they are another executor's
    jobs = args.jobs if args.jobs is not None else study.jobs
    return make_executor(kind, jobs, threads, options, main, study.processes)


def _kind(study: StudyConfig, args: argparse.Namespace) -> str:
    return args.executor or study.executor.get("kind", "local")


def _show_failures(console: Console, failures: Sequence[Failure], trials: set[str]) -> None:
    """Print what failed, and what the same command would do; `trials`: keys of trials' cells."""
    for failure in failures:
        log = f"   log: {failure.log}" if failure.log else ""
        console.print(f"failed: {failure.cell.name}: {failure.reason}{log}", soft_wrap=True)
    of_trials = sum(failure.cell.key in trials for failure in failures)
    words = {
        len(failures)
        - of_trials: "failed; all others are done. The same command tries them again.",
        of_trials: "of trials failed. Such a trial counts, and is not tried again.",
    }
    for count, said in words.items():
        if count:
            console.print(f"{counted(count, 'cell')} {said}", soft_wrap=True)
