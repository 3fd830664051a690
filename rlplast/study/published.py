"""Published curves that a study's arms are held against: its key ``published``.

A CSV has a row per task, setting and moment, and at least the columns of `COLUMNS`. By any other
one, such as ``replay_ratio``, a study picks rows.
"""

import csv
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplast.core.errors import ConfigError, check_known, shortened
from rlplast.run.shipped import config_folder

if TYPE_CHECKING:  # it loads torch, which a report does not need
    from rlplast.study.spec import StudyConfig

__all__ = ["COLUMNS", "PublishedCurve", "PublishedPoint", "published_curves"]

# What a row says beside its setting, and the least that each may be.
_MEASURED = {"env_steps": 1, "seeds": 2, "return_mean": -math.inf, "return_sd": 0}
_COUNTS = ("env_steps", "seeds")
COLUMNS = ("source", "task", *_MEASURED)
_ERRORS = 2  # standard errors on either side of a published mean
_Row = dict[str, str]


@dataclass(frozen=True)
class PublishedPoint:
    """What was published at one moment, of at least two seeds.

    Mean and standard deviation are over seeds, of each one's mean evaluation in the 20k env_steps
    up to the moment.
    """

    env_steps: int
    seeds: int
    mean: float
    sd: float

    @property
    def band(self) -> tuple[float, float]:
        """The mean minus and plus two standard errors.

        Examples:
            >>> PublishedPoint(60_000, 4, 100.0, 10.0).band
            (90.0, 110.0)
        """
        half = _ERRORS * self.sd / math.sqrt(self.seeds)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class PublishedCurve:
    """What was published of an arm in a task; points ascend in env_steps."""

    task: str
    arm: str
    source: str
    points: tuple[PublishedPoint, ...]


def published_curves(study: "StudyConfig") -> list[PublishedCurve]:
    """Return the curves that a study's key ``published`` names, in the order of tasks and arms."""
    given = study.published
    if given is None:
        return []
    check_known("published.arms", given.arms, [arm for arm, _ in study.expanded()])
    rows = _rows(given.file)
    found = {arm: _picked(arm, wanted, rows) for arm, wanted in given.arms.items()}
    curves = []
    for arm, own in found.items():
        tasks = [task for task in study.task_list() if any(row["task"] == task for row in own)]
        if not tasks:
            there = dict.fromkeys(row["task"] for row in own)
            raise ConfigError(
                f"published.arms.{arm} = {given.arms[arm]!r}: its rows are of no task of the "
                f"study, {', '.join(map(repr, study.task_list()))}; allowed are "
                f"{', '.join(there)}: call a task so, or leave the arm out"
            )
        curves += [_curve(task, arm, own) for task in tasks]
    order = list(study.task_list())
    return sorted(curves, key=lambda curve: order.index(curve.task))


def _rows(name: str) -> list[_Row]:
    """Read a CSV from the current folder or the shipped ones, and check every row."""
    path = Path(name) if os.path.isfile(name) else config_folder() / name
    if not os.path.isfile(path):
        raise ConfigError(
            f"published.file = {shortened(name)} is neither a file nor a shipped one: allowed is a "
            "CSV such as study/replay_ratio/dmc_curves.csv; correct the path"
        )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            head = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(
            f"published.file = {name!r} cannot be read ({error}): allowed is a CSV in UTF-8"
        ) from error
    missing = [column for column in COLUMNS if column not in head]
    if missing or not rows:
        what = f"has no column {', '.join(missing)}" if missing else "has no rows"
        raise ConfigError(
            f"published.file = {name!r} {what}: allowed is a CSV with a row per moment and the "
            f"columns {', '.join(COLUMNS)}; add what is missing"
        )
    for line, row in rows:
        _check_row(f"published.file = {name!r}, line {line}", row)
    return [row for _, row in rows]


def _check_row(where: str, row: Mapping[Any, Any]) -> None:
    if None in row or None in row.values():
        raise ConfigError(f"{where}: allowed are as many values as there are columns; correct it")
    for column, least in _MEASURED.items():
        value, whole = _number(row[column]), column in _COUNTS
        right = math.isfinite(value) and value >= least
        if not right or (whole and not row[column].isdecimal()):
            kind = "a whole number" if whole else "a finite number"
            raise ConfigError(
                f"{where}: {column} = {shortened(row[column])}: allowed is {kind}"
                + (f" from {least} on" if least > -math.inf else "")
                + "; correct the line, or delete it"
            )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _picked(arm: str, wanted: Mapping[str, Any], rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows whose columns have an arm's values."""
    key = f"published.arms.{arm}"
    columns = [column for column in rows[0] if column not in ("task", *_MEASURED)]
    if not wanted:
        raise ConfigError(f"{key} = {{}}: allowed is a mapping of {', '.join(columns)}")
    check_known(key, wanted, columns)
    left = list(rows)
    for column, value in wanted.items():
        there = dict.fromkeys(row[column] for row in left)
        left = [row for row in left if row[column] == str(value)]
        if not left:
            others = [f"{name}: {wanted[name]}" for name in wanted if name != column]
            beside = f" beside {', '.join(others)}" if others else ""
            raise ConfigError(
                f"{key}.{column} = {value!r} matches no row{beside}: allowed is one of "
                f"{', '.join(map(repr, there))}; correct it, or leave the arm out"
            )
    return left


def _curve(task: str, arm: str, rows: Sequence[_Row]) -> PublishedCurve:
    """Return the curve that an arm's rows of a task make."""
    own = sorted((row for row in rows if row["task"] == task), key=lambda r: int(r["env_steps"]))
    settings = [column for column in own[0] if column not in _MEASURED]
    differ = [column for column in settings if len({row[column] for row in own}) > 1]
    moments = [int(row["env_steps"]) for row in own]
    twice = next((a for a, b in itertools.pairwise(moments) if a == b), None)
    if differ or twice is not None:
        raise ConfigError(
            f"published.arms.{arm} matches several curves of {task}: allowed is one; "
            + (f"say {' and '.join(differ)}" if differ else f"delete one row at {twice} env_steps")
        )
    points = (
        PublishedPoint(steps, int(row["seeds"]), float(row["return_mean"]), float(row["return_sd"]))
        for steps, row in zip(moments, own, strict=True)
    )
    return PublishedCurve(task, arm, own[0]["source"], tuple(points))
