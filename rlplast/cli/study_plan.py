"""A study's plan in words: its tree of cells, and with `--plan` what they will take.

- `show_plan`: the tree.
- `run_plan`: `rlplast study NAME --plan`, which starts nothing and needs no data.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rlplast.cli.study_cells import build_each, read_study_config, study_cells
from rlplast.cli.study_smoke import smoke_runs
from rlplast.cli.tables import counted
from rlplast.core.errors import ConfigError
from rlplast.core.training.config import RunConfig
from rlplast.run.made_data import make_data
from rlplast.run.roofline import Machine, measured
from rlplast.study.estimate import Estimate, estimate
from rlplast.study.plan import Cell, cost, plan
from rlplast.study.smoke import shrunk_study
from rlplast.study.spec import StudyConfig

__all__ = ["run_plan", "show_plan"]


def run_plan(args: argparse.Namespace, check: Callable[[StudyConfig, int], object]) -> int:
    """Show cells, time and disk of a study, and check every arm.

    Args:
        args: the command's arguments.
        check: checks that the executor can be had, with so many threads for each cell.

    Raises:
        ConfigError: naming the arm that could not be built, whatever is installed.
    """
    study = read_study_config(args.config)
    cells = study_cells(study)
    threads = max(cell.config.threads for cell in cells)
    machine = measured(threads)
    found = estimate(cells, machine)
    console = Console()
    show_plan(console, cells, found)
    _say(console, f"estimate: {_whole(cells, found)}")
    _say(console, _basis(machine, threads))
    for missing in dict.fromkeys(name for cell in cells for name in _missing(cell.config)):
        _say(console, f"not there yet: {missing}")
    _check_arms(console, study)
    check(study, threads)
    return 0


def show_plan(
    console: Console, cells: Sequence[Cell], estimates: Mapping[str, Estimate] | None = None
) -> None:
    """Print the tree of the first task and seed, and what it saves in all."""
    first = next(c for c in cells if c.arm is not None)
    own = [c for c in cells if (c.task, c.seed) == (first.task, first.seed)]
    title = "/".join(part for part in (first.task, f"seed-{first.seed}") if part)
    root = Tree(Text(title))  # names may have brackets, which are no markup
    branches: dict[str | None, Tree] = {None: root}
    for cell in own:
        label = Text(cell.arm if cell.arm is not None else cell.name.split("/")[-1])
        if estimates is not None and cell.key in estimates:
            label.append(f"  {_said(estimates[cell.key])}", "dim")
        branches[cell.key] = branches[cell.parent].add(label, highlight=False)
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


def _whole(cells: Sequence[Cell], found: Mapping[str, Estimate]) -> str:
    """Return what all cells take, by task where there are several."""
    by_task: dict[str, Estimate] = {}
    for cell in cells:
        if cell.key in found:
            own = found[cell.key]
            by_task[cell.task] = by_task.get(cell.task, Estimate(0, 0, 0)) + own
    if not by_task:
        return "none, for runs of a kind that is not known here"
    whole = sum(by_task.values(), start=Estimate(0, 0, 0))
    parts = [f"{task} {_said(own)}" for task, own in by_task.items()] if len(by_task) > 1 else []
    ideal = f"{whole.flops:.1e} FLOP in updates, {duration(whole.flops / 1e13)} at 10 TFLOP/s"
    return "; ".join([f"{_said(whole)}, one cell after the other", ideal, *parts])


def _basis(machine: Machine, threads: int) -> str:
    return (
        f"basis: the network traced on paper, this machine with {counted(threads, 'thread')} at "
        f"{machine.matmul / 1e9:.0f} GFLOP/s (convolutions {machine.conv / 1e9:.0f}) and "
        f"{machine.bandwidth / 1e9:.0f} GB/s, environments as measured on another; not counted: "
        "hooks, penalties, metrics"
    )


def _said(found: Estimate) -> str:
    return f"{duration(found.seconds)}, {size(found.disk)}"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Examples:
        >>> duration(42), duration(600), duration(7200), duration(1e6)
        ('42 s', '10 min', '2.0 h', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86_400:.1f} days"


def size(count: float) -> str:
    """Return a number of bytes as people say it.

    Examples:
        >>> size(999), size(2.5e6), size(7.1e9)
        ('1 kB', '2 MB', '7.1 GB')
    """
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


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


def _check_arms(console: Console, study: StudyConfig) -> None:
    """Build every arm, made small, so that no data are needed; say what is not installed.

    Raises:
        ConfigError: naming the arm, for what no package would mend.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs, _ = smoke_runs(shrunk_study(study), Path(folder))
        said = set()
        for run in runs:
            try:
                config = run.config.to_resume()
                make_data(config)
                build_each(plan([run]))
            except ConfigError as error:
                if not _for_want_of_a_package(error):
                    raise
                said.add(str(error).partition(": ")[2])
        for message in sorted(said):
            _say(console, f"not installed: {message}")


def _for_want_of_a_package(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ImportError):
            return True
        error = error.__cause__
    return False


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
