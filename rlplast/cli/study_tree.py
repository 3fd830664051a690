"""A study's plan in words: its tree of cells.

- `show_plan`: the tree of the first task and seed, with estimates if there are some.
- `said`, `duration`, `size`: an estimate, a time and a number of bytes for people.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rlplast.cli.tables import counted
from rlplast.study.plan import Cell, cost

if TYPE_CHECKING:
    from rlplast.study.estimate import Estimate

__all__ = ["duration", "said", "show_plan", "size"]


def show_plan(
    console: Console, cells: Sequence[Cell], estimates: "Mapping[str, Estimate] | None" = None
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


def said(found: "Estimate") -> str:
    """Return an estimate in words."""
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
