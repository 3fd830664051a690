"""What the charts and tables of a report are made from."""

import re
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from rlplast.report.arms import Look, looks, unused
from rlplast.report.frame import Results, averaged, comparable
from rlplast.report.scores import bounds_of, reference_id
from rlplast.report.statistics import ALL_TASKS, Summary, measure, summarise

__all__ = ["Report", "report_of", "slug_of"]

LONGEST = 80  # letters of a task in a file's name


def report_of(raw: Results) -> "Report":
    """Return what a report says, from what was read.

    Raises:
        NothingDone: if no run is finished.
        ConfigError: if runs of one task cannot be compared.
    """
    single = measure(comparable(raw))
    several = (single.done.continuation > 1).any()
    results = measure(averaged(single)) if several else single
    return Report(single, results, summarise(results))


@dataclass(frozen=True)
class Report:
    """The runs of a report and its numbers.

    ``single`` has runs as they were trained; in ``results``, of which ``summary`` has the numbers,
    the continuations of a seed are one run, their mean.
    """

    single: Results
    results: Results
    summary: Summary

    @cached_property
    def looks(self) -> tuple[Look, ...]:
        """How each arm looks."""
        return looks(self.results.arms, self.summary.baseline)

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that have a finished run."""
        done = set(self.results.done.task)
        return [task for task in self.results.tasks if task in done]

    @cached_property
    def slugs(self) -> dict[str, str]:
        """Task → its part of a file's name, each another; "all" is that of all tasks."""
        found = {ALL_TASKS: "all"}
        for task in self.results.tasks:
            found[task] = unused(slug_of(task), found.values())
        return found

    @cached_property
    def groups(self) -> dict[str, pd.DataFrame]:
        """All tasks together, if they have rows, then each task → its rows of the summary."""
        found = {task: self.summary.of(task) for task in (ALL_TASKS, *self.tasks)}
        return {task: rows for task, rows in found.items() if len(rows)}

    def look(self, arm: str) -> Look:
        """Return how an arm looks."""
        return next(look for look in self.looks if look.name == arm)

    def any_of(self, task: str) -> int:
        """Return a run of a task, a finished one if there is one."""
        runs = pd.concat([self.results.done.task, self.results.going.task])
        return int(runs.index[runs == task][0])

    def going(self, task: str) -> pd.DataFrame:
        """Return the runs of a task that have not ended, with the task's score over its x."""
        first, own = self.results.runs.loc[self.any_of(task)], self.results.going
        return own[(own.task == task) & (own.unit == first.unit) & (own.score == first.score)]

    def score(self, task: str) -> str:
        """Return the name of a task's score."""
        return self.results.runs.score[self.any_of(task)]

    def unit(self, task: str) -> str:
        """Return what the x of a task's curves counts."""
        return self.results.runs.unit[self.any_of(task)]

    def axis(self, task: str) -> str:
        """Return what the x axis of a task's curves says."""
        return self.unit(task).replace("_", " ")

    def bounds(self, task: str, key: str) -> tuple[float, float]:
        """Return between what a score or metric of a task's runs lies, if that is known."""
        return bounds_of(reference_id(self.results.configs[self.any_of(task)]), key)

    def branches(self, task: str) -> list[float]:
        """Return where in units of a task's curves runs left their prefixes."""
        return sorted(set(self.results.of(task).branch.dropna()))

    def ordered(self, rows: pd.DataFrame) -> list[tuple[Look, pd.DataFrame]]:
        """Return each arm's look with its rows of a table, in the order of the study."""
        parts = dict(iter(rows.groupby("arm", sort=False)))
        return [(look, parts[look.name]) for look in self.looks if look.name in parts]


def slug_of(name: str) -> str:
    """Return a name as a part of a file's name and of an id.

    Examples:
        >>> slug_of("atari/Asterix")
        'atari-asterix'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST].strip("-") or "unnamed"
