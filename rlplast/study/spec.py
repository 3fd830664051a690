"""A study's config: a base run, tasks, seeds and arms."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from rlplast.core.errors import ConfigError, check_choice, check_known
from rlplast.core.registry import LISTS
from rlplast.core.rng import numpy_stream
from rlplast.core.validation import Section, validated
from rlplast.study.spec_checks import Arm, Published, Sample, check_arm, check_size, check_values

__all__ = ["ArmRun", "StudyConfig", "runs_of"]

Layers = tuple[Mapping[str, Any], ...]  # values by dotted key; a later one's hold
Seed = Annotated[int, Field(ge=0, lt=10**18)]
_DRAWS = 1000  # tries for a draw unlike the others


@dataclass(frozen=True)
class StudyConfig(Section):
    """The keys of a study's YAML.

    Attributes:
        base: the config of a run: a path, a shipped name such as ``dqn/demo``, or a mapping.
        arms: a mapping of an arm's name → what it has beyond the base: ``hooks``, ``penalties``,
            ``layers``, and ``overrides`` (values by dotted key). ``grid`` or ``sample`` make one
            arm per combination of values. ``tasks`` maps a task's name to what the arm has there
            instead: values by dotted key, or null if it does not run there.
        tasks: a mapping of a task's name → values by dotted key; or a list of environments' ids.
        seeds: a list of seeds. A number N stands for 1 to N.
        overrides: values by dotted key, for all runs.
        baseline: the arm that others are compared with. The default is ``none``, if there is such
            an arm.
        threads: CPU threads of each process of a run; null: as the base says.
        processes: how many processes train each run together, on a GPU each if its device is cuda.
            More than 1 is for runs of kind gpt.
        jobs: runs at the same time; null: as many as the cores allow.
        continuations: how often each arm goes on from the prefix that it shares with others, each
            time with streams of its own: of environments, exploration, batches and hooks. Arms that
            share nothing run once.
        recovered: the final score from which a continuation counts as recovered, or up to which
            where less is better; null: the best score of the prefix.
        retries: how often a failed run is started again.
        executor: ``kind`` (local, ray or slurm) and its options.
        published: curves that reports hold arms against: ``file``, a CSV, and ``arms``, which maps
            an arm's name to the values of its rows by column, as `rlplast.study.published` reads.
    """

    base: str | dict[str, Any] = field(default_factory=dict)
    arms: dict[str, Arm | None] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] | list[str] | None = None
    seeds: list[Seed] | int = 1
    overrides: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    threads: PositiveInt | None = None
    processes: PositiveInt = 1
    jobs: PositiveInt | None = None
    continuations: PositiveInt = 1
    recovered: float | None = None
    retries: NonNegativeInt = 1
    executor: dict[str, Any] = field(default_factory=lambda: {"kind": "local"})
    published: Published | None = None

    @classmethod
    def parse(cls, data: Any) -> "StudyConfig":
        """Check a study's mapping."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a study is a mapping, not {data!r}: it needs base and arms")
        if not {"base", "arms"} & set(data) and {"kind", "total", "env", "agent"} & set(data):
            raise ConfigError(
                "this is the config of one run: `rlplast train` takes it; a study names it under "
                "base, and has arms"
            )
        for key in ("base", "arms"):
            if not data.get(key):
                raise ConfigError(f"study has no {key}: it needs base, a run's config, and arms")
        check_known("study", map(str, data), [field.name for field in dataclasses.fields(cls)])
        given = {str(key): value for key, value in data.items() if value is not None}
        if isinstance(given["arms"], Mapping):
            names = [str(name) for name in given["arms"]]
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(f"two arms are called {name!r}: give each a name of its own")
        if isinstance(given.get("baseline"), str | int | float):
            given["baseline"] = str(given["baseline"])  # arms may be called by numbers
        study = validated(cls, given)
        study._check()
        return study

    def _check(self) -> None:
        if self.tasks is not None and not self.tasks:
            raise ConfigError("tasks is empty: name at least one, or leave the key out")
        seeds = self.seed_list()
        check_size("seeds", len(seeds))
        check_size("continuations", self.continuations)
        if self.recovered is not None and self.continuations == 1:
            raise ConfigError(
                f"recovered = {self.recovered:g}: it is a score of continuations, of which there "
                "is one: add continuations, or leave it out"
            )
        if not len(set(seeds)) == len(seeds) > 0:
            raise ConfigError(
                f"seeds = {self.seeds!r}: allowed is how many, or a list of numbers, each once"
            )
        if isinstance(self.tasks, list) and len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"tasks = {self.tasks!r}: allowed is each once")
        check_values(self.overrides, "overrides")
        for name, values in self.task_list().items():
            check_values(values, f"tasks.{name}")
        self._check_arms()

    def _check_arms(self) -> None:
        tasks = list(self.task_list())
        if "all tasks" in tasks:
            raise ConfigError(
                "tasks: reports use 'all tasks' for the mean over tasks; choose another name"
            )
        for name, arm in self.arms.items():
            check_arm(name, arm or Arm(), tasks)
            if all(_own(arm, task) is None for task in tasks):
                raise ConfigError(
                    f"arms.{name}.tasks: null in every task, so it runs nowhere; allowed is a "
                    "mapping in one at least, or leave the arm out"
                )
        arms = [name for name, _ in self.expanded()]
        if self.baseline is not None:
            check_choice("baseline", self.baseline, arms)

    def seed_list(self) -> list[int]:
        """Return the seeds."""
        if isinstance(self.seeds, int):
            check_size("seeds", self.seeds)
            return list(range(1, self.seeds + 1))
        return list(self.seeds)

    def task_list(self) -> dict[str, dict[str, Any]]:
        """Return each task's name and values by dotted key; one without a name if none is given."""
        if self.tasks is None:
            return {"": {}}
        if isinstance(self.tasks, list):
            return {env: {"env.id": env} for env in self.tasks}
        return dict(self.tasks)

    def expanded(self, task: str | None = None) -> list[tuple[str, Layers]]:
        """Return each arm's name and its values by dotted key, in the order of the file.

        Only of those that run in `task`, if given. ConfigError if two arms end up with one name.
        """
        arms: dict[str, Layers] = {}
        for name, arm in self.arms.items():
            own = _own(arm, task)
            for label, layers in _expanded(name, arm or Arm(), own) if own is not None else ():
                if label in arms:
                    raise ConfigError(f"two arms are called {label!r}: give each a name of its own")
                arms[label] = layers
        return list(arms.items())


@dataclass(frozen=True)
class ArmRun:
    """One run of a study; `overrides` of the base config, by dotted key, later ones last."""

    task: str
    seed: int
    arm: str
    overrides: Layers


def runs_of(study: StudyConfig) -> list[ArmRun]:
    """Return every run of a study; arms in the order of the file."""
    threads = {} if study.threads is None else {"threads": study.threads}
    return [
        ArmRun(task, seed, arm, (study.overrides, there, *layers, threads | {"seed": seed}))
        for task, there in study.task_list().items()
        for seed in study.seed_list()
        for arm, layers in study.expanded(task)
    ]


def _own(arm: Arm | None, task: str | None) -> Mapping[str, Any] | None:
    """Return an arm's values for one task; None if it does not run there."""
    there = (arm and arm.tasks) or {}
    return there.get(task, {}) if task is not None else {}


def _expanded(name: str, arm: Arm, own: Mapping[str, Any]) -> Iterator[tuple[str, Layers]]:
    """Yield each arm that `grid` or `sample` make of one, with its values by dotted key.

    `own` are those that it has for one task.
    """
    lists = {key: rows for key in LISTS if (rows := getattr(arm, key)) is not None}
    values = (lists | (arm.overrides or {}), *([own] if own else ()))
    grid, sample = arm.grid, arm.sample
    if grid:
        labels = _short(list(grid))
        check_size(f"arms.{name}.grid", math.prod(len(v) for v in grid.values()))
        for combination in itertools.product(*grid.values()):
            chosen = dict(zip(grid, combination, strict=True))
            words = " ".join(f"{labels[key]}={_value_text(value)}" for key, value in chosen.items())
            yield f"{name} {words}", (*values, chosen)
    elif sample:
        for number, chosen in enumerate(_samples(name, sample), start=1):
            yield f"{name} #{number}", (*values, chosen)
    else:
        yield name, values


def _samples(name: str, sample: Sample) -> Iterator[dict[str, Any]]:
    """Yield so many draws, all different; more of them begin with the same ones."""
    check_size(f"arms.{name}.sample.count", sample.count)
    seen: list[dict[str, Any]] = []
    for number in range(sample.count):
        rng = numpy_stream(sample.seed, "sample", name, number)
        for _ in range(_DRAWS):
            chosen = {key: _drawn(rng, choice) for key, choice in sample.keys.items()}
            if chosen not in seen:
                break
        else:
            raise ConfigError(
                f"arms.{name}.sample.count = {sample.count}: its keys have but {len(seen)} "
                "different values; allowed is at most that"
            )
        seen.append(chosen)
        yield chosen


def _short(keys: list[str]) -> dict[str, str]:
    """Return for each dotted key the shortest end that no other key has."""
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        others = [f".{other}" for other in keys if other != key]
        short[key] = next((e for e in ends if not any(o.endswith(f".{e}") for o in others)), key)
    return short


def _value_text(value: Any) -> str:
    """Return a value as people write it, and no two alike."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short


def _drawn(rng: Any, choice: Any) -> Any:
    """Draw one value: from a list, or from a range, uniformly or in its logarithm."""
    if isinstance(choice, list):
        return choice[int(rng.integers(len(choice)))]
    low, high = choice["low"], choice["high"]
    if choice.get("integer", False):
        return int(rng.integers(low, high + 1))
    if choice.get("log", False):
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))
    return float(rng.uniform(low, high))
