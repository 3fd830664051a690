"""Study: compare arms, and train what they share only once.

CONFIG is a file, or a shipped name such as study/demo. It names a base config, tasks, seeds and
arms. Finished runs are skipped. So the same command continues after an interruption, and after you
change the file it runs only what is new. Then `rlplast report DIR` shows the results.
"""

import argparse
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlplast.cli.live import step_shown
from rlplast.cli.output import new_console, say
from rlplast.cli.signals import stoppable
from rlplast.cli.study_plan import said_of_search, show_tree
from rlplast.cli.study_progress import study_progress
from rlplast.cli.tables import counted
from rlplast.study.api import read_study, run_study
from rlplast.study.folder import config_path
from rlplast.study.scheduler import Failure, Progress

if TYPE_CHECKING:
    from rlplast.study.search import Search

__all__ = ["add_arguments", "run", "shown"]


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
    # Both import more than other commands need.
    if args.smoke:
        from rlplast.cli.study_smoke import run_smoke

        return run_smoke(args)
    if args.plan:
        from rlplast.cli.study_plan import run_plan

        return run_plan(args)
    study = read_study(args.config, args.out, args.executor, args.jobs)
    console = new_console()
    if study.cells:
        show_tree(console, study.cells)
    for line in said_of_search(study.config):
        say(line)
    with shown(study.folder) as (observer, step):
        found = run_study(study, observer, say, step)
    path, trials = found.folder, found.trials
    if not found.began:
        console.print(f"{path} is done: `rlplast report {path}`", soft_wrap=True)
    if trials is not None:
        _show_best(trials.searches, path)
    _show_failures(console, found.failures, {c.key for c in trials.known()} if trials else set())
    if found.began and not found.failures:
        console.print(f"study: {path}   next: `rlplast report {path}`", soft_wrap=True)
    return int(bool(found.failures))


@contextmanager
def shown(
    folder: Path,
) -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Show what is done, then how far cells are; yields what is told of cells and of steps.

    While cells run, a signal stops them once they have saved.
    """
    with ExitStack() as stack:
        observers: list[Callable[[Progress], None]] = []
        step = stack.enter_context(step_shown())

        def observe(progress: Progress) -> None:
            if not observers:
                stack.close()
                stack.enter_context(stoppable())
                observers.append(stack.enter_context(study_progress(folder)))
            observers[0](progress)

        yield observe, step


def _show_best(searches: "Sequence[Search]", root: Path) -> None:
    """Print the best trial of each search as a command to run."""
    for search in searches:
        where = f"{search.task}/{search.arm}" if search.task else search.arm
        states = [trial.state.name for trial in search.over().values()]
        rest = ", ".join(
            f"{states.count(state)} {word}"
            for state, word in (("PRUNED", "pruned"), ("FAIL", "failed"))
            if state in states
        )
        best = search.best()
        about = f"search: {where}: {counted(len(states), 'trial')}" + (f", {rest}" if rest else "")
        if best is None:
            say(f"{about}; none came to its end")
            continue
        number, value = best
        config = config_path(root, search.cells(number)[0].key)
        chosen = " ".join(f"--{key} {_word(v)}" for key, v in search.chosen(number).items())
        say(
            f"{about}; best is #{number} with {search.config.metric} = {value:g}:\n"
            f"  rlplast train {config} {chosen}"
        )


def _word(value: object) -> str:
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


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
