"""`rlplast study NAME --plan`: what a study will take. It keeps nothing and needs no data."""

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlplast.cli.output import new_console, say
from rlplast.cli.study_cells import build_each, read_study_config, study_cells, study_folder
from rlplast.cli.study_search import drawn_trials, said_of_search
from rlplast.cli.study_smoke import smoke_runs
from rlplast.cli.study_tree import said, show_plan
from rlplast.core.errors import ConfigError
from rlplast.run.made_data import make_data
from rlplast.study.estimate import estimate
from rlplast.study.plan import plan
from rlplast.study.smoke import shrunk_study
from rlplast.study.spec import StudyConfig
from rlplast.training.config import RunConfig

__all__ = ["run_plan"]


def run_plan(args: argparse.Namespace, check: Callable[[StudyConfig, int], object]) -> int:
    """Show cells, time and disk of a study, and check every arm.

    Args:
        args: the command's arguments.
        check: checks that the executor can be had, with so many threads for each cell.

    Raises:
        ConfigError: naming the arm that could not be built, whatever is installed.
    """
    study = read_study_config(args.config)
    cells = [*study_cells(study), *drawn_trials(study)]
    cells = list({cell.key: cell for cell in reversed(cells)}.values())[::-1]  # equal ones are one
    found, basis = estimate(cells, study_folder(args))
    show_plan(new_console(), cells, found)
    for line in said_of_search(study):
        say(line)
    say(f"estimate: {said(sum(found.values(), Counter()))}, one cell after the other")
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in cells:
        by_task[cell.task] += found[cell.key]
    if len(by_task) > 1:
        say("; ".join(f"{task} {said(own)}" for task, own in by_task.items()))
    say(basis)
    for missing in dict.fromkeys(name for cell in cells for name in _missing(cell.config)):
        say(f"not there yet: {missing}")
    _check_arms(study)
    check(study, max(cell.config.threads for cell in cells))
    return 0


def _missing(config: RunConfig) -> list[str]:
    """Return the folders that a run reads and that are not there."""
    known: Any = config
    named: dict[str, str | None] = {}
    if config.kind == "supervised":
        named = {"data.folder": known.data.folder, "data.corrupted": known.data.corrupted}
    elif config.kind == "gpt":
        named = {f"corpora.{name}": source for name, source in known.corpora.items()}
        named = {k: s for k, s in named.items() if s and not s.startswith("embedded/")}
        named["start.run"] = known.start.run
    return [f"{s} ({key})" for key, s in named.items() if s and not Path(s).expanduser().is_dir()]


def _check_arms(study: StudyConfig) -> None:
    """Build every arm, made small, so that no data are needed; say what is not installed.

    Raises:
        ConfigError: naming the arm, for what no package would mend.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs, _ = smoke_runs(shrunk_study(study), Path(folder))
        said: set[str] = set()
        levels: dict[str, None] = {}
        for run in runs:
            try:
                config = run.config.to_resume()
                make_data(config)
                levels |= dict.fromkeys(build_each(plan([run]), processes=study.processes))
            except ConfigError as error:
                if not _for_want_of_a_package(error):
                    raise
                said.add(str(error).partition(": ")[2])
        for message in sorted(said):
            say(f"not installed: {message}")
        for line in levels:
            say(line)


def _for_want_of_a_package(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ImportError):
            return True
        error = error.__cause__
    return False
