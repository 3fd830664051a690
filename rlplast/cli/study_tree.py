"""A study's plan in words: its tree of cells.

- `show_plan`: the tree of the first task and seed, with estimates if there are some.
- `said`: an estimate for people.
"""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rlplast.cli.output import visible
from rlplast.cli.tables import counted, duration, size
from rlplast.study.plan import Cell, cost

__all__ = ["said", "show_plan"]


def show_plan(
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
    for cell in own:
        label = Text(visible(cell.arm if cell.arm is not None else cell.name.split("/")[-1]))
        if estimates is not None and cell.key in estimates:
            label.append(f"  {said(estimates[cell.key])}", "dim")
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


def said(found: Mapping[str, float]) -> str:
    """Return in words what a cell takes, as `rlplast.study.estimate` says."""
    words = [f"{found[u]:,.0f} {u}" for u in ("env_steps", "updates") if found.get(u)]
    words += [duration(found["seconds"])] if "seconds" in found else []
    return ", ".join([*words, *([size(found["disk"])] if "disk" in found else [])])
