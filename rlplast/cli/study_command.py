"""Study: compare arms, and train what they share only once.

CONFIG is a file, or a shipped name such as study/demo. It names a base config, tasks, seeds and
arms. Finished runs are skipped. So the same command continues after an interruption, and after you
change the file it runs only what is new. Then `rlplast report DIR` shows the results.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlplast.cli.live import step_shown
from rlplast.cli.output import new_console, say
from rlplast.cli.signals import stoppable
from rlplast.cli.study_plan import seed_lines, show_tree
from rlplast.cli.study_progress import study_progress
from rlplast.core.duration import counted
from rlplast.study.api import study, study_folder
from rlplast.study.plan import Cell
from rlplast.study.spec import StudyConfig
from rlplast.study.watch import Progress

__all__ = ["add_arguments", "run", "shown"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="file or shipped name")
    parser.add_argument("--out", help="the study's folder; default: runs/study-NAME")
    parser.add_argument("--executor", help="local, ray or slurm; default: the config's")
    parser.add_argument(
        "--jobs", type=int, help="runs at the same time; default: as many as the cores allow"
    )
    parser.add_argument(
        "--plan", action="store_true", help="check every arm, show cells, steps and time, and exit"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="try every arm for a moment, made small"
    )


def run(args: argparse.Namespace) -> int:
    # Both import more than other commands need.
    if args.smoke:
        from rlplast.cli.study_smoke import run_smoke

        return run_smoke(args)
    if args.plan:
        from rlplast.cli.study_plan import run_plan

        return run_plan(args)
    console = new_console()

    def planned(config: StudyConfig, cells: Sequence[Cell]) -> None:
        show_tree(console, cells)
        for line in seed_lines(config):
            say(line)

    with shown(study_folder(args.config, args.out)) as callbacks:
        found = study(
            args.config,
            args.out,
            executor=args.executor,
            jobs=args.jobs,
            report=say,
            planned=planned,
            **callbacks,
        )
    path = found.folder
    if not found.began:
        console.print(f"{path} is done: `rlplast report {path}`", soft_wrap=True)
    for failure in found.failures:
        log = f"   log: {failure.log}" if failure.log else ""
        say(f"failed: {failure.cell.name}: {failure.reason}{log}")
    if found.failures:
        count = counted(len(found.failures), "cell")
        say(f"{count} failed; all others are done. The same command tries them again.")
    elif found.began:
        console.print(f"study: {path}   next: `rlplast report {path}`", soft_wrap=True)
    return int(bool(found.failures))


@contextmanager
def shown(folder: Path) -> Iterator[dict[str, Any]]:
    """Show what is done, then how far cells are; yields ``step`` and ``observer``.

    While cells run, a signal stops them once they have saved.
    """
    with ExitStack() as stack:
        steps: list[Callable[[str], None]] = []
        observers: list[Callable[[Progress], None]] = []

        def step(text: str) -> None:
            if not steps:
                steps.append(stack.enter_context(step_shown()))
            steps[0](text)

        def observe(progress: Progress) -> None:
            if not observers:
                stack.close()
                stack.enter_context(stoppable())
                observers.append(stack.enter_context(study_progress(folder)))
            observers[0](progress)

        yield {"step": step, "observer": observe}
