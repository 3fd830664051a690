"""What the sections of a report are made from, and the words their captions share.

- `Report`: runs, numbers and looks of arms, looked up by task and arm.
- `ranked`: rows, the best first.
- `better`, `interval_words`: a score with its sense; which intervals there are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rlplast.core.mean_interval import FEWEST, LEVEL
from rlplast.report.arm_styles import ArmStyle, arm_styles, unused
from rlplast.report.gather import Gathered
from rlplast.report.numbers import judged
from rlplast.report.run_data import Run, RunData, task_length
from rlplast.report.scores import bounds_of, reference_id
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow
from rlplast.training.best import higher_is_better

__all__ = ["Report", "Rows", "better", "interval_words", "ranked", "slug_of"]

LONGEST = 80  # letters of a task in a file's name
Rows = dict[int, SummaryRow]  # index of an arm → its row


@dataclass(frozen=True)
class Report:
    """The runs of a report and its numbers."""

    gathered: Gathered
    summary: Summary

    @cached_property
    def arms(self) -> tuple[ArmStyle, ...]:
        """How each arm looks."""
        return arm_styles(self.gathered.arms, self.summary.baseline)

    @cached_property
    def slugs(self) -> dict[str, str]:
        """Task → its part of a file's name, each another; "all" is that of all tasks."""
        found = {ALL_TASKS: "all"}
        going = (run.task for run in self.gathered.running)
        for task in dict.fromkeys((*self.gathered.tasks, *going)):
            found[task] = unused(slug_of(task), found.values(), "-")
        return found

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that have a run."""
        done = {run.task for run in self.gathered.runs}
        return [task for task in self.gathered.tasks if task in done]

    @cached_property
    def groups(self) -> dict[str, Rows]:
        """Task, and `ALL_TASKS` → its rows, where it has any."""
        index = {look.name: look.index for look in self.arms}
        found: dict[str, Rows] = {task: {} for task in self.tasks}
        for row in (*self.summary.rows, *self.summary.aggregates):
            found.setdefault(row.task, {})[index[row.arm]] = row
        return {task: rows for task, rows in found.items() if rows}

    def rows(self, task: str) -> Rows:
        """Return the rows of a task, or those over all tasks."""
        return self.groups.get(task, {})

    def of(self, task: str, arm: str | None = None) -> list[RunData]:
        """Return the runs of a task, or an arm's of them."""
        return [r for r in self.gathered.runs if r.task == task and arm in (None, r.arm)]

    def running(self, task: str) -> list[RunData]:
        """Return the runs of a task that have not ended, and have its score over its x."""
        own = [run for run in self.gathered.running if run.task == task]
        first = self.any_of(task) if own else None
        return [r for r in own if first and (r.unit, r.score) == (first.unit, first.score)]

    def any_of(self, task: str) -> RunData:
        """Return a run of a task, a finished one if there is one."""
        runs = (*self.gathered.runs, *self.gathered.running)
        return next(run for run in runs if run.task == task)

    def measured(self, task: str, arm: str) -> list[Run]:
        """Return the numbers of an arm's runs of a task."""
        return [run for run in self.summary.runs if (run.task, run.arm) == (task, arm)]

    def unit(self, task: str) -> str:
        """Return what the x of a task's curves counts, in words."""
        return self.any_of(task).unit.replace("_", " ")

    def axis(self, task: str) -> tuple[str, int]:
        """Return what the x axis of a task's pictures says, and how many units one step of it is.

        A run whose phases are tasks of one length is drawn over the tasks done.
        """
        run = self.any_of(task)
        length = task_length(run.config) if run.unit == "epochs" else None
        return ("tasks done", length) if length else (self.unit(task), 1)

    def score(self, task: str) -> str:
        """Return the name of a task's score."""
        return self.any_of(task).score

    def bounds(self, task: str, key: str) -> tuple[float, float]:
        """Return between what a score or metric of a task's runs lies, if that is known."""
        return bounds_of(reference_id(self.any_of(task).config), key)

    def branches(self, task: str) -> list[float]:
        """Return where in units of a task's curves runs left their prefixes."""
        runs = self.of(task)
        return sorted({float(run.branch[run.unit]) for run in runs if run.branch is not None})

    def moment(self, task: str) -> str:
        """Return what happens where the first arm of a task leaves the others, in words."""
        return "branch" if self.branches(task) else "first hook"


def interval_words(rows: Iterable[SummaryRow]) -> str:
    """Return in words which intervals there are."""
    few = [judged(row.final) is None and judged(row.improvement) is None for row in rows]
    if all(few):
        return f"none, as arms have fewer than {FEWEST} seeds"
    return f"{LEVEL:.0%} intervals" + (
        f" (none with fewer than {FEWEST} seeds)" if any(few) else ""
    )


def ranked(rows: Rows) -> Rows:
    """Return the rows of a task, or those over all, the best final score first."""
    first = next(iter(rows.values()))
    sign = -1 if first.task == ALL_TASKS or higher_is_better(first.score) else 1

    def place(row: SummaryRow) -> tuple[bool, float]:
        return row.final.value != row.final.value, sign * row.final.value

    return dict(sorted(rows.items(), key=lambda own: place(own[1])))


def better(key: str) -> str:
    """Return a score's name with its sense, for an axis."""
    return f"{key} ({'higher' if higher_is_better(key) else 'lower'} is better)"


def slug_of(name: str) -> str:
    """Return a name as a part of a file's name and of an id.

    Examples:
        >>> slug_of("atari/Asterix")
        'atari-asterix'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST].strip("-") or "unnamed"
