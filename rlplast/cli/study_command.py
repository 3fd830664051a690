"""Study: train prefixes once, then every arm from where it parts from the others.

CONFIG is a file, or the name of a shipped one such as study/demo. It names a base config, tasks,
seeds and arms. What is done is skipped, so the same command goes on after any interruption, and
runs what is new after the file was changed. `rlplast report DIR` then draws what came out.
"""

import argparse
import copy
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rlplast.cli.cell import config_path
from rlplast.cli.errors import stoppable
from rlplast.cli.study_progress import study_progress
from rlplast.cli.tables import counted
from rlplast.core.errors import ConfigError, Interrupted, RlplastError
from rlplast.core.training.config import read_yaml
from rlplast.core.training.run_folder import write_text
from rlplast.run.build import build
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.info import versions
from rlplast.run.shipped import find_config
from rlplast.study.executors import Executor, make_executor
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell, PlannedRun, cost, plan
from rlplast.study.scheduler import Failure, Stopped, pending, run_cells
from rlplast.study.spec import StudyConfig, runs_of

__all__ = ["add_arguments", "read_study_config", "run", "study_cells"]

# What a cell runs is the code that planned it, whatever lies in the current folder.
_ROOT = str(Path(__file__).resolve().parents[2])
_CELL = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from rlplast.cli.cell import main; sys.exit(main())"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("config", metavar="CONFIG", help="file or shipped name")
    parser.add_argument("--out", help="the study's folder; default: runs/NAME of the config")
    parser.add_argument("--executor", help="local, ray or slurm; default: what the config says")
    parser.add_argument("--jobs", type=int, help="runs at once; default: what the cores hold")
    parser.add_argument("--dry_run", action="store_true", help="show the plan and exit")


def read_study_config(source: str) -> StudyConfig:
    """Return a study's checked config from a path or a shipped name.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    return StudyConfig.parse(read_yaml(find_config(source)))


def study_cells(study: StudyConfig) -> list[Cell]:
    """Return the cells of a study, every run's config resolved.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    runs, read = [], {}  # seeds differ in nothing else: one of them is read
    for run in runs_of(study):
        try:
            if (run.task, run.arm) not in read:
                read[run.task, run.arm] = read_config(study.base, *run.overrides)
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}: {error}") from error
        config = dataclasses.replace(copy.deepcopy(read[run.task, run.arm]), seed=run.seed)
        runs.append(PlannedRun(run.task, run.seed, run.arm, config))
    return plan(runs)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    study = read_study_config(args.config)
    cells = study_cells(study)
    console = Console()
    _show_plan(console, study, cells)
    threads = max(cell.config.threads for cell in cells)
    if args.dry_run:
        _build_each(cells)
        _executor(study, threads, args).close()
        return 0
    path = Path(args.out) if args.out else Path("runs") / f"study-{Path(args.config).stem}"
    folder = StudyFolder(path)
    try:
        folder.open_for(versions())
        left = pending(cells, path)
        if not left:
            console.print(f"{path} is done: `rlplast report {path}`", soft_wrap=True, markup=False)
        _build_each(left)
        executor = _executor(study, threads, args)
        try:
            _write(folder, study, cells, args.config)
            failures = _run(folder, cells, executor, study, args.modules)
        finally:
            executor.close()
    finally:
        folder.close()
    _show_failures(console, failures)
    if failures:
        return 1
    if left:
        say = f"study: {path}   next: `rlplast report {path}`"
        console.print(say, soft_wrap=True, markup=False)
    return 0


def _run(
    folder: StudyFolder,
    cells: Sequence[Cell],
    executor: Executor,
    study: StudyConfig,
    modules: Sequence[str],
) -> list[Failure]:
    """Run what is not done; a signal stops the running cells once they have saved.

    Raises:
        Interrupted: after SIGINT or SIGTERM.
    """
    imports = tuple(word for module in modules for word in ("--import", module))

    def command(cell: Cell) -> tuple[str, ...]:
        study_path = str(folder.path.resolve())
        return (sys.executable, "-P", "-c", _CELL, study_path, cell.key, *imports)

    try:
        with stoppable(), study_progress(folder.path) as observer:
            return run_cells(cells, folder, executor, command, study.retries, observer)
    except Stopped as interruption:
        stopped = counted(interruption.cells, "running cell")
        raise Interrupted(
            f"{stopped} stopped: the same command goes on with {folder.path} from their newest "
            "checkpoints"
        ) from interruption


def _executor(study: StudyConfig, threads: int, args: argparse.Namespace) -> Executor:
    options = {k: v for k, v in study.executor.items() if k != "kind"}
    kind = args.executor or study.executor.get("kind", "local")
    if args.executor and args.executor != study.executor.get("kind", "local"):
        options = {}  # they are another executor's
    jobs = args.jobs if args.jobs is not None else study.jobs
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: allowed is at least 1")
    return make_executor(kind, jobs, threads, options)


def _build_each(left: Sequence[Cell]) -> None:
    """Build each arm of each task once, before hours are spent on what it goes on from.

    Raises:
        ConfigError: naming the arm, for whatever its config asks that is not there.
    """
    seen = set()
    for cell in left:
        if cell.arm is None or (cell.task, cell.arm) in seen:
            continue
        seen.add((cell.task, cell.arm))
        try:
            trainable, _ = build(cell.config.to_resume())
        except RlplastError as error:
            raise ConfigError(f"arm {cell.arm!r}: {error}") from error
        trainable.close()


def _write(folder: StudyFolder, study: StudyConfig, cells: Sequence[Cell], source: str) -> None:
    """Write the plan: configs before study.json, which names them."""
    write_text(folder.path / "study.yaml", find_config(source).read_text())
    (folder.path / "configs").mkdir(exist_ok=True)
    for cell in cells:
        path = config_path(folder.path, cell.key)
        text = dump_config(cell.config)
        if not path.exists() or path.read_bytes() != text.encode():  # edited, or cut short
            write_text(path, text)
    arms = list(dict.fromkeys(run.arm for run in runs_of(study)))
    about: dict[str, Any] = {
        "name": Path(source).stem,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": versions(),
        "baseline": study.baseline or ("none" if "none" in arms else None),
        "arms": arms,
        "tasks": list(study.task_list()),
        "seeds": study.seed_list(),
    }
    folder.write_plan(about, cells)


def _show_plan(console: Console, study: StudyConfig, cells: Sequence[Cell]) -> None:
    """Print the tree of the first task and seed, and what it saves in all."""
    first = next(c for c in cells if c.arm is not None)
    own = [c for c in cells if (c.task, c.seed) == (first.task, first.seed)]
    title = "/".join(part for part in (first.task, f"seed-{first.seed}") if part)
    root = Tree(Text(title))  # names may have brackets, which are no markup
    branches: dict[str | None, Tree] = {None: root}
    for cell in own:
        label = cell.arm if cell.arm is not None else cell.name.split("/")[-1]
        node = branches[cell.parent].add(Text(label), highlight=False)
        branches[cell.key] = node
    console.print(root)
    trees = len({(c.task, c.seed) for c in cells})
    if trees > 1:
        console.print(f"and {counted(trees - 1, 'more tree')} like it, for other tasks and seeds")
    spent, runs = cost(cells)
    saved = 0.0 if runs == 0 else 1 - spent / runs
    console.print(
        f"{counted(len(cells), 'cell')}: the training of {spent:.2f} whole runs instead of {runs}, "
        f"{saved:.0%} saved",
        highlight=False,
    )


def _show_failures(console: Console, failures: Sequence[Failure]) -> None:
    for failure in failures:
        log = f"   log: {failure.log}" if failure.log else ""
        console.print(
            f"failed: {failure.cell.name}: {failure.reason}{log}", soft_wrap=True, markup=False
        )
    if failures:
        console.print(
            f"{counted(len(failures), 'cell')} failed; all others are done. The same command tries "
            "them again.",
            soft_wrap=True,
        )
