"""From runs to a prefix tree: what arms have in common is trained once.

An arm that resets at 50% and one that resets at 75% train the first half as one prefix. Two runs of
one task and seed share a prefix if only hooks and penalties differ; it ends when one that only one
of them has may act first. `plan` finds these moments from the configs alone. It makes a cell of
every prefix, and one of the rest of each run.
"""

import dataclasses
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, shortened
from rlplast.core.method.listing import row_implements
from rlplast.core.method.schedule import KEYS, Schedule, hook_identity
from rlplast.run.length import updates_at
from rlplast.training.config import RunConfig

__all__ = ["Cell", "PlannedRun", "cost", "plan", "weights"]

# A run's hooks and penalties as canonical JSON. The row of a penalty is the list that ends with it,
# since its place in the list names its state.
Rows = tuple[str, ...]
_LONGEST = 80  # characters of a task or an arm in a file name; the name of a log has both


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study, its config checked, and how many processes train it together."""

    task: str
    seed: int
    arm: str
    config: RunConfig
    processes: int = 1


@dataclass(frozen=True)
class Cell:
    """A piece of training: a prefix that several runs share, or the rest of one run.

    Attributes:
        key: names the content: equal configs, ended at equal points, have equal keys.
        task: name of the task.
        seed: seed of the run.
        arm: the arm's name; None for a prefix.
        config: the run's config; a prefix's has the hooks that fire in it, and its penalties.
        parent: key of the prefix it goes on from; None for the start of training.
        starts: where that prefix ended, at the first of these; empty for the start.
        stops: where a prefix ends, at the first of these; empty for an arm.
    """

    key: str
    task: str
    seed: int
    arm: str | None
    config: RunConfig
    parent: str | None
    starts: tuple[Time, ...]
    stops: tuple[Time, ...]

    @property
    def name(self) -> str:
        """What people call it, such as ``asterix/seed-1/fire``."""
        own = self.arm if self.arm is not None else f"prefix to {_words(self.stops)}"
        number = self.config.continuation
        more = f"continuation-{number}" if number > 1 else ""
        return "/".join(part for part in (self.task, f"seed-{self.seed}", own, more) if part)

    @property
    def folder(self) -> str:
        """Its run's folder, below the study's."""
        own = self.arm if self.arm is not None else f"prefix-{_words(self.stops)}"
        parts = [_file_name(self.task)] if self.task else []
        return "/".join(["cells", *parts, f"seed-{self.seed}", f"{_file_name(own)}-{self.key[:8]}"])


def plan(runs: Iterable[PlannedRun], continuations: int = 1) -> list[Cell]:
    """Return the cells of all runs; a prefix comes before the cells that go on from it.

    Each arm that goes on from a prefix has so many continuations.

    Raises:
        ConfigError: if two arms, or two tasks, are the same run, or a hook is never due; or if
            there is no prefix to continue.
    """
    groups: dict[tuple[Any, ...], list[PlannedRun]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.seed, _without_rows(run.config), _installed(run.config)].append(run)
    cells = [cell for group in groups.values() for cell in _cells(group, continuations)]
    if continuations > 1 and all(cell.parent is None for cell in cells):
        raise ConfigError(
            f"continuations = {continuations}: no arms share a prefix to go on from; give the "
            "hooks of two arms at least a later time, such as at: 50%, or leave it out"
        )
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.key, cell)
        if other is not cell:
            raise ConfigError(
                f"tasks {other.task!r} and {cell.task!r} are the same run: leave one of them out"
            )
    return cells


def _installed(config: RunConfig) -> Rows:
    """Return the hooks whose modules are in the network from the start."""
    return tuple(_canonical(row) for row in config.hooks if row_implements(row, "install"))


def _cells(group: Sequence[PlannedRun], continuations: int) -> list[Cell]:
    """Return the cells of runs whose configs differ in hooks and penalties only."""
    lists = [_rows(run.config) for run in group]
    identities: dict[str, str] = {}
    earliest: dict[str, list[Time]] = {}
    for run, rows in zip(group, lists, strict=True):
        hooks = len(run.config.hooks)
        for i, row in enumerate(rows[:hooks]):
            schedule = _schedule(row, i, run)
            identities[row] = hook_identity(json.loads(row), schedule)
            earliest[row] = _acts_from(row, schedule)
        for i, row in enumerate(rows[hooks:]):
            identities[row], earliest[row] = row, _is_added_from(i, run)
    cells: list[Cell] = []
    # Runs that are still together, by index; the prefix that they go on from, and where it ended.
    todo: list[tuple[list[int], str | None, tuple[Time, ...]]] = [
        (list(range(len(group))), None, ())
    ]
    while todo:
        same, parent, starts = todo.pop()
        first = group[same[0]]
        if len(same) == 1:
            configs = [first.config]
            if parent is not None:
                more = range(2, continuations + 1)
                configs += [dataclasses.replace(first.config, continuation=n) for n in more]
            for config in configs:
                key = _key(config, (), first.processes)
                about = (first.task, first.seed, first.arm, config)
                cells.append(Cell(key, *about, parent, starts, ()))
            continue
        own = dict(zip(same, _own_rows([lists[i] for i in same], identities), strict=True))
        stops = _earliest(time for rows in own.values() for row in rows for time in earliest[row])
        if not stops:
            names = ", ".join(repr(group[i].arm) for i in same)
            raise ConfigError(f"arms {names} are the same run: leave all but one of them out")
        if min(time.value for time in stops) > 0:
            config = _shared_config(first.config, own[same[0]])
            key = _key(config, stops, first.processes)
            cells.append(Cell(key, first.task, first.seed, None, config, parent, starts, stops))
            parent, starts = key, stops
        due = {
            i: tuple(row for row in rows if set(earliest[row]) & set(stops))
            for i, rows in own.items()
        }
        # The last one put there comes first.
        todo += [(part, parent, starts) for part in reversed(_alike(same, due, lists))]
    return cells


def _alike(same: list[int], due: Mapping[int, Rows], lists: Sequence[Rows]) -> list[list[int]]:
    """Return which runs stay together: they have the same rows due, in the same order."""
    parts: list[list[int]] = []
    for i in same:
        for part in parts:
            if due[i] == due[part[0]] and (
                not due[i] or all(_agree(lists[i], lists[j], due[i]) for j in part)
            ):
                part.append(i)
                break
        else:
            parts.append([i])
    return parts


def _own_rows(lists: Sequence[Rows], identities: Mapping[str, str]) -> list[Rows]:
    """Return the rows of each list that the lists do not share."""
    # Hooks of one moment fire in list order. The number of a row among those of one method and
    # schedule names its streams and state: such rows are shared all or none.
    own: set[str] = set()
    for rows in lists[1:]:
        own |= {row for row in {*rows, *lists[0]} if rows.count(row) != lists[0].count(row)}
    common = [tuple(row for row in rows if row not in own) for rows in lists]
    for rows in common[1:]:
        own |= {row for row in rows if _before(row, rows) != _before(row, common[0])}
    named = {identities[row] for row in own}
    return [tuple(row for row in rows if identities[row] in named) for rows in lists]


def _agree(one: Rows, other: Rows, due: Rows) -> bool:
    """Return whether two lists have the rows `due` in one order with the rows of both."""
    ours = tuple(row for row in one if row in other)
    theirs = tuple(row for row in other if row in one)
    return all(_before(row, ours) == _before(row, theirs) for row in due)


def _before(row: str, rows: Rows) -> list[list[str]]:
    """Return what comes before each occurrence of a row."""
    return [sorted(rows[:i]) for i, other in enumerate(rows) if other == row]


def _schedule(row: str, place: int, run: PlannedRun) -> Schedule:
    """Return the schedule of a run's hook row number `place`."""
    hook, config = json.loads(row), run.config
    label = f"arm {run.arm!r}: hooks[{place}]"
    if not isinstance(hook, dict) or not isinstance(hook.get("method"), str):
        raise ConfigError(
            f"{label} has no 'method' that is a name, but {shortened(hook)}: see `rlplast list "
            "interventions`"
        )
    keys = {key: hook.get(key) for key in KEYS}
    label = f"{label} ({hook['method']})"
    return Schedule.parse(keys, config.reference_time(), label, config.horizon())


def _acts_from(row: str, schedule: Schedule) -> list[Time]:
    """Return the times up to which a run with a hook equals one without."""
    if row_implements(json.loads(row), "follow"):  # its state follows every update
        return [Time(0, "updates")]
    return schedule.earliest()


def _is_added_from(place: int, run: PlannedRun) -> list[Time]:
    """Return the times up to which a run with its penalty number `place` equals one without."""
    row, config = run.config.penalties[place], run.config
    acts = any(row_implements(row, name) for name in ("install", "plan"))  # at every update
    if acts or not config.adds_penalties_apart() or not isinstance(row, dict):
        return [Time(0, "updates")]
    keys = {key: row.get(key) for key in ("from", "until")}
    label = f"arm {run.arm!r}: penalties[{place}] ({row.get('method')})"
    keys["every"] = "1 updates"
    return Schedule.parse(keys, config.reference_time(), label, config.horizon()).earliest()


def _earliest(times: Iterable[Time]) -> tuple[Time, ...]:
    """Return the earliest time in each unit; only those of the start, if there is one."""
    first: dict[str, float] = {}
    for time in times:
        first[time.unit] = min(time.value, first.get(time.unit, time.value))
    found = [Time(value, unit) for unit, value in sorted(first.items())]
    return tuple([time for time in found if time.value == 0] or found)


def _shared_config(config: RunConfig, own: Rows) -> RunConfig:
    """Return a config with the rows that all runs share, and all hooks that install modules."""
    left = list(own)
    hooks = []
    for hook in config.hooks:
        row = _canonical(hook)
        # Hooks that install modules stay: later hooks are in one order with them.
        if row in left and not row_implements(hook, "install"):
            left.remove(row)
        else:
            hooks.append(hook)
    # The shared ones come first: a row holds all penalties before it.
    shared = sum(row not in own for row in _penalty_rows(config))
    return dataclasses.replace(config, hooks=hooks, penalties=config.penalties[:shared])


def _rows(config: RunConfig) -> Rows:
    return *(_canonical(hook) for hook in config.hooks), *_penalty_rows(config)


def _penalty_rows(config: RunConfig) -> Rows:
    return tuple(_canonical(config.penalties[: i + 1]) for i in range(len(config.penalties)))


def _without_rows(config: RunConfig) -> str:
    return _canonical(dataclasses.asdict(dataclasses.replace(config, hooks=[], penalties=[])))


def _key(config: RunConfig, stops: tuple[Time, ...], processes: int) -> str:
    content = {"config": dataclasses.asdict(config), "stops": [str(time) for time in stops]}
    content |= {"processes": processes} if processes > 1 else {}  # their sums round differently
    return hashlib.sha256(_canonical(content).encode()).hexdigest()[:16]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _words(times: tuple[Time, ...]) -> str:
    return " or ".join(map(str, times))


def _file_name(text: str) -> str:
    """Return a name that every file system takes; the hash beside it tells names apart."""
    return re.sub(r"[^A-Za-z0-9.=_#-]+", "-", text)[:_LONGEST].strip("-.") or "arm"


def cost(cells: Sequence[Cell]) -> tuple[float, int]:
    """Return what the cells cost in whole runs, at most, and how many runs they stand for."""
    return sum(weights(cells).values()), sum(cell.arm is not None for cell in cells)


def weights(cells: Sequence[Cell]) -> dict[str, float]:
    """Return what each cell costs in whole runs, by key, as `cost` counts."""
    lengths = {cell.key: _length(cell) for cell in cells}
    return {c.key: lengths[c.key] - (lengths[c.parent] if c.parent else 0.0) for c in cells}


def _length(cell: Cell) -> float:
    """Return the share of its run at which a cell ends, in [0, 1]; 0 if not known."""
    if cell.arm is not None:
        return 1.0
    shares = [_share(cell.config, time) for time in cell.stops]
    return min(1.0, *shares) if all(shares) else 0.0


def _share(config: RunConfig, time: Time) -> float:
    """Return the share of a run that lies before a time; 0 if not known."""
    end = config.horizon()[time.unit]
    phased = config.kind in ("supervised", "gpt")
    if phased and (time.unit != "updates" or end == 0):  # epochs differ in length
        return updates_at(config, time) / updates_at(config, config.total_time())
    return time.value / end if end > 0 else 0.0
