"""A study's plan in words."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rlplast.cli.output import new_console, say, visible
from rlplast.core.duration import counted, duration
from rlplast.core.mean_interval import FEWEST
from rlplast.study.plan import Cell, cost
from rlplast.study.spec import StudyConfig

__all__ = ["run_plan", "seed_lines", "show_tree"]


def run_plan(args: argparse.Namespace) -> int:
    """Show cells, steps and time of a study; ConfigError if an arm or executor cannot be had."""
    from rlplast.study.estimate import plan_study  # imports more than other commands need

    found = plan_study(args.config, args.out, args.executor, args.jobs)
    show_tree(new_console(), found.cells, found.takes)
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in found.cells:
        by_task[cell.task] += found.takes[cell.key]
    whole = _estimate_text(sum(by_task.values(), Counter()))
    lines = [*seed_lines(found.config)]
    lines.append(f"estimate: {whole}, one cell after the other")
    if len(by_task) > 1:
        lines.append("; ".join(f"{task} {_estimate_text(own)}" for task, own in by_task.items()))
    for line in (*lines, *found.notes):
        say(line)
    if found.problem is not None:
        raise found.problem
    return 0


def show_tree(
    console: Console,
    cells: Sequence[Cell],
    estimates: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print the tree of the first task and seed, and what it saves in all."""
    first = next(c for c in cells if c.arm is not None)
    own = [c for c in cells if (c.task, c.seed) == (first.task, first.seed)]
    title = "/".join(part for part in (first.task, f"seed-{first.seed}") if part)
    root = Tree(title)
    branches: dict[str | None, Tree] = {None: root}
    times = Counter((c.parent, c.arm) for c in own)  # an arm's continuations are one line
    for cell in own:
        if cell.config.continuation > 1:
            continue
        label = Text(visible(cell.arm if cell.arm is not None else cell.name.split("/")[-1]))
        if cell.arm is not None and times[cell.parent, cell.arm] > 1:
            label.append(f" × {times[cell.parent, cell.arm]}")
        if estimates is not None and cell.key in estimates:
            label.append(f"  {_estimate_text(estimates[cell.key])}", "dim")
        branches[cell.key] = branches[cell.parent].add(label, highlight=False)
    console.print(root)
    trees = len({(c.task, c.seed) for c in cells})
    if trees > 1:
        console.print(f"and {counted(trees - 1, 'more tree')} like it, for other tasks and seeds")
    spent, runs = cost(cells)
    console.print(
        f"{counted(len(cells), 'cell')}: the training of {spent:.2f} whole runs instead of {runs}, "
        f"{1 - spent / runs:.0%} saved",
        highlight=False,
    )


def _estimate_text(found: Mapping[str, float]) -> str:
    """Return in words what a cell takes, as `rlplast.study.estimate` says."""
    words = [f"{found[u]:,.0f} {u}" for u in ("env_steps", "updates") if found.get(u)]
    return ", ".join([*words, *([duration(found["seconds"])] if "seconds" in found else [])])


def seed_lines(study: StudyConfig) -> Iterator[str]:
    """Yield a line if a study has too few seeds for intervals, before any is trained."""
    seeds = len(study.seed_list())
    if seeds < FEWEST:
        yield (
            f"with {counted(seeds, 'seed')} the report draws no intervals: "
            f"it needs {FEWEST} per task"
        )
