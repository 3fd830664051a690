"""What the sections of a report are made from, and the words their captions share.

- `Report`: runs, numbers and looks of arms, looked up by task and arm.
- `better`, `interval_words`: a score with its sense; how intervals were made.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rlplast.report.gather import Gathered, RunData, higher_is_better, score_key
from rlplast.report.looks import Look, looks
from rlplast.report.summary import ALL_TASKS, Run, Summary, SummaryRow

__all__ = ["LEVEL", "RESAMPLES", "Report", "better", "interval_words", "slug_of"]

LEVEL, RESAMPLES = 0.95, 2000  # of all intervals


@dataclass(frozen=True)
class Report:
    """The runs of a report and its numbers."""

    gathered: Gathered
    summary: Summary

    @cached_property
    def arms(self) -> tuple[Look, ...]:
        """How each arm looks."""
        return looks(self.gathered.arms, self.summary.baseline)

    @cached_property
    def slugs(self) -> dict[str, str]:
        """Task → its part of a file's name, each another."""
        found: dict[str, str] = {}
        for task in self.gathered.tasks:
            slug = base = slug_of(task)
            number = 1
            while slug in found.values():
                number += 1
                slug = f"{base}-{number}"
            found[task] = slug
        return found

    def of(self, task: str, arm: str) -> list[RunData]:
        """Return an arm's runs of a task."""
        return [run for run in self.gathered.runs if (run.task, run.arm) == (task, arm)]

    def measured(self, task: str, arm: str) -> list[Run]:
        """Return the numbers of an arm's runs of a task."""
        return [run for run in self.summary.runs if (run.task, run.arm) == (task, arm)]

    def rows(self, task: str) -> dict[int, SummaryRow]:
        """Return index of an arm → its row of a task."""
        names = {look.name: look.index for look in self.arms}
        return {names[row.arm]: row for row in self.summary.rows if row.task == task}

    def aggregates(self) -> dict[int, SummaryRow]:
        """Return index of an arm → its row over all tasks."""
        names = {look.name: look.index for look in self.arms}
        return {names[row.arm]: row for row in self.summary.aggregates}

    def unit(self, task: str) -> str:
        """Return what the x of a task's curves counts, in words."""
        return next(r.unit for r in self.gathered.runs if r.task == task).replace("_", " ")

    def key(self, task: str) -> str:
        """Return the name of a task's score."""
        return score_key(next(r for r in self.gathered.runs if r.task == task).metrics)

    def branches(self, task: str) -> list[float]:
        """Return where in units of a task's curves runs left their prefixes."""
        runs = [run for run in self.gathered.runs if run.task == task]
        return sorted({float(run.branch[run.unit]) for run in runs if run.branch is not None})

    def moment(self, task: str) -> str:
        """Return what happens where the first arm of a task leaves the others, in words."""
        return "branch" if self.branches(task) else "first hook"

    def tasks(self) -> list[str]:
        """Return the tasks that have a run."""
        done = {run.task for run in self.gathered.runs}
        return [task for task in self.gathered.tasks if task in done]


def _counted(rows: Iterable[SummaryRow]) -> str:
    """Return in words how many seeds the arms have; needs a row."""
    rows = list(rows)
    of_tasks = [row for row in rows if row.task != ALL_TASKS]
    noun = "seed" if of_tasks else "run"  # a row over all tasks counts its runs
    counts = sorted({row.seeds for row in of_tasks or rows})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} {noun}s"
    return f"{counts[0]} {noun}{'' if counts[0] == 1 else 's'}"


def interval_words(rows: Iterable[SummaryRow]) -> str:
    """Return in words how the intervals of an arm's seeds were made."""
    rows = list(rows)
    if all(row.seeds < 2 for row in rows):
        return "none, as there is one seed each"
    alone = " (none for one seed)" if any(row.seeds < 2 for row in rows) else ""
    return (
        f"{LEVEL:.0%} percentile bootstrap over seeds{alone}, {RESAMPLES:,} resamples, "
        f"{_counted(rows)}"
    )


def better(key: str) -> str:
    """Return a score's name with its sense, for an axis."""
    return f"{key} ({'higher' if higher_is_better(key) else 'lower'} is better)"


def slug_of(name: str) -> str:
    """Return a name as a part of a file's name and of an id.

    Examples:
        >>> slug_of("atari/Asterix")
        'atari-asterix'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"
