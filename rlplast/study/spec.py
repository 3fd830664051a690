"""A study's config: a base run, tasks, seeds and arms.

- `StudyConfig`: the keys of a study's YAML; `parse` checks them.
- `ArmRun`: one (task, seed, arm) with what it sets in the base config.
- `runs_of`: all of them, `grid` and `sample` expanded.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlplast.core.errors import ConfigError, check_choice, check_known, shortened
from rlplast.core.rng import numpy_stream

__all__ = ["ArmRun", "StudyConfig", "runs_of"]

LISTS = ("hooks", "penalties", "layers")
ARM_KEYS = (*LISTS, "overrides", "grid", "sample", "tasks")
SAMPLE_KEYS = ("count", "seed", "keys")
RANGE_KEYS = ("low", "high", "log", "integer")
Layers = tuple[Mapping[str, Any], ...]  # values by dotted key; a later one's hold
_WIDEST, _WIDEST_INTEGER = 1e300, 10**18  # ends of a range: drawing from it does not overflow
_MOST = 100_000  # seeds, or arms that one grid or sample stands for
_DRAWS = 1000  # tries for a draw unlike the others


@dataclass(frozen=True)
class StudyConfig:
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
        threads: CPU threads of each run; null: as the base says.
        jobs: runs at the same time; null: as many as the cores allow.
        retries: how often a failed run is started again.
        executor: ``kind`` (local, ray or slurm) and its options.
    """

    base: str | dict[str, Any] = field(default_factory=dict)
    arms: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, Any] | list[str] | None = None
    seeds: list[int] | int = 1
    overrides: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    threads: int | None = None
    jobs: int | None = None
    retries: int = 1
    executor: dict[str, Any] = field(default_factory=lambda: {"kind": "local"})

    @classmethod
    def parse(cls, data: Any) -> "StudyConfig":
        """Check a study's mapping.

        Raises:
            ConfigError: naming the key, its value and what is allowed.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"a study is a mapping, not {data!r}: it needs base and arms")
        if not {"base", "arms"} & set(data) and {"kind", "total", "env", "agent"} & set(data):
            raise ConfigError(
                "this is the config of one run: `rlplast train` takes it; a study names it under "
                "base, and has arms"
            )
        check_known("study", data, [f.name for f in dataclasses.fields(cls)])
        for key in ("base", "arms"):
            if not data.get(key):
                raise ConfigError(f"study has no {key}: it needs base, a run's config, and arms")
        given = {key: value for key, value in data.items() if value is not None}
        if "baseline" in given:
            given["baseline"] = str(given["baseline"])  # arms may be called by numbers
        study = cls(**given)
        study._check()
        return study

    def _check(self) -> None:
        if not isinstance(self.base, str | Mapping):
            raise ConfigError(f"base = {self.base!r}: allowed is a config's name, path or mapping")
        for key in ("arms", "overrides", "executor"):
            if not isinstance(getattr(self, key), Mapping):
                raise ConfigError(f"{key} = {getattr(self, key)!r}: allowed is a mapping")
        if not isinstance(self.tasks, Mapping | list | None):
            raise ConfigError(f"tasks = {self.tasks!r}: allowed is a list of ids or a mapping")
        if self.tasks is not None and not self.tasks:
            raise ConfigError("tasks is empty: name at least one, or leave the key out")
        for key, least in (("threads", 1), ("jobs", 1), ("retries", 0)):
            value = getattr(self, key)
            if value is not None and not (_whole(value) and value >= least):
                raise ConfigError(f"{key} = {value!r}: allowed is a whole number from {least} on")
        seeds = self.seed_list()
        _check_size("seeds", len(seeds))
        if not all(_whole(s) and s >= 0 for s in seeds) or not len(set(seeds)) == len(seeds) > 0:
            raise ConfigError(
                f"seeds = {self.seeds!r}: allowed is how many, or a list of numbers, each once"
            )
        _check_values(self.overrides, "overrides")
        tasks = list(self.task_list())
        for name, arm in self.arms.items():
            _check_arm(str(name), arm)
            _check_tasks(f"arms.{name}.tasks", (arm or {}).get("tasks") or {}, tasks)
        arms = [name for name, _ in self.expanded()]
        if self.baseline is not None:
            check_choice("baseline", self.baseline, arms)

    def seed_list(self) -> list[int]:
        """Return the seeds."""
        if isinstance(self.seeds, int) and _whole(self.seeds):
            _check_size("seeds", self.seeds)
            return list(range(1, self.seeds + 1))
        return self.seeds if isinstance(self.seeds, list) else []

    def task_list(self) -> dict[str, dict[str, Any]]:
        """Return each task's name and its values by dotted key; one without a name if none is said.

        Raises:
            ConfigError: for values that are no mapping.
        """
        if self.tasks is None:
            return {"": {}}
        if isinstance(self.tasks, list):
            tasks = {str(env): {"env.id": env} for env in self.tasks}
            if len(tasks) < len(self.tasks):
                raise ConfigError(f"tasks = {self.tasks!r}: allowed is each once")
            return tasks
        for name, values in self.tasks.items():
            if not isinstance(values, Mapping):
                raise ConfigError(
                    f"tasks.{name} = {values!r}: allowed is a mapping of values by dotted key"
                )
            _check_values(values, f"tasks.{name}")
        return {str(name): dict(values) for name, values in self.tasks.items()}

    def expanded(self, task: str | None = None) -> list[tuple[str, Layers]]:
        """Return each arm's name and its values by dotted key, in the order of the file.

        Args:
            task: of this task, without arms that do not run there; None for all arms.

        Raises:
            ConfigError: if two arms end up with one name.
        """
        arms: dict[str, Layers] = {}
        for name, arm in self.arms.items():
            there = {str(key): v for key, v in ((arm or {}).get("tasks") or {}).items()}
            own = there.get(task, {}) if task is not None else {}
            for label, layers in _expanded(str(name), arm or {}, own) if own is not None else ():
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


def _expanded(
    name: str, arm: Mapping[str, Any], own: Mapping[str, Any]
) -> Iterator[tuple[str, Layers]]:
    """Yield each arm that `grid` or `sample` make of one, with its values by dotted key.

    Values for one task, `own`, come after the arm's, and before those of `grid` and `sample`.
    """
    lists = {key: arm[key] for key in LISTS if arm.get(key) is not None}
    values = [lists | (arm.get("overrides") or {}), *([own] if own else ())]
    grid, sample = arm.get("grid"), arm.get("sample")
    if grid:
        labels = _short(list(grid))
        _check_size(f"arms.{name}.grid", math.prod(len(v) for v in grid.values()))
        for combination in itertools.product(*grid.values()):
            chosen = dict(zip(grid, combination, strict=True))
            words = " ".join(f"{labels[key]}={_said(value)}" for key, value in chosen.items())
            yield f"{name} {words}", (*values, chosen)
    elif sample:
        for number, chosen in enumerate(_samples(name, sample), start=1):
            yield f"{name} #{number}", (*values, chosen)
    else:
        yield name, tuple(values)


def _samples(name: str, sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield so many draws, all different; more of them begin with the same ones."""
    _check_size(f"arms.{name}.sample.count", sample["count"])
    seen: list[dict[str, Any]] = []
    for number in range(sample["count"]):
        rng = numpy_stream(sample.get("seed", 0), "sample", name, number)
        for _ in range(_DRAWS):
            chosen = {key: _drawn(rng, choice) for key, choice in sample["keys"].items()}
            if chosen not in seen:
                break
        else:
            raise ConfigError(
                f"arms.{name}.sample.count = {sample['count']}: its keys have but {len(seen)} "
                "different values; allowed is at most that"
            )
        seen.append(chosen)
        yield chosen


def _short(keys: list[str]) -> dict[str, str]:
    """Return for each dotted key the shortest end that no other key has.

    Examples:
        >>> _short(["hooks.0.params.coef", "optimizer.lr"])
        {'hooks.0.params.coef': 'coef', 'optimizer.lr': 'lr'}
    """
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        others = [f".{other}" for other in keys if other != key]
        short[key] = next((e for e in ends if not any(o.endswith(f".{e}") for o in others)), key)
    return short


def _said(value: Any) -> str:
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


def _check_arm(name: str, arm: Any) -> None:
    if not re.search(r"[A-Za-z0-9]", name):
        raise ConfigError(f"arm {name!r}: allowed is a name with a letter or a digit")
    if arm is None:
        return
    if not isinstance(arm, Mapping):
        raise ConfigError(f"arms.{name} = {arm!r}: allowed is a mapping of {', '.join(ARM_KEYS)}")
    check_known(f"arms.{name}", arm, ARM_KEYS)
    for key in ("overrides", "grid", "sample"):
        value = arm.get(key)
        if value is not None and not (isinstance(value, Mapping) and value):
            raise ConfigError(f"arms.{name}.{key} = {value!r}: allowed is a mapping by dotted key")
    if arm.get("grid") and arm.get("sample"):
        raise ConfigError(f"arms.{name} has grid and sample: allowed is one of them")
    _check_values(arm.get("overrides") or {}, f"arms.{name}.overrides")
    _check_values(arm.get("grid") or {}, f"arms.{name}.grid")
    for key, choices in (arm.get("grid") or {}).items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"arms.{name}.grid.{key} = {choices!r}: allowed is a list of values")
    if arm.get("sample"):
        _check_sample(f"arms.{name}.sample", arm["sample"])


def _check_tasks(where: str, given: Any, tasks: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} = {given!r}: allowed is a mapping by names of tasks")
    check_known(where, map(str, given), tasks)
    for task, values in given.items():
        if not isinstance(values, Mapping | None):
            raise ConfigError(f"{where}.{task} = {values!r}: allowed is a mapping, or null")
        _check_values(values or {}, f"{where}.{task}")


def _check_sample(where: str, sample: Mapping[str, Any]) -> None:
    check_known(where, sample, SAMPLE_KEYS)
    count, seed, keys = sample.get("count"), sample.get("seed", 0), sample.get("keys")
    if not _whole(count) or count < 1:  # type: ignore[operator]
        raise ConfigError(f"{where}.count = {count!r}: allowed is a whole number from 1 on")
    if not _whole(seed):
        raise ConfigError(f"{where}.seed = {seed!r}: allowed is a whole number")
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigError(
            f"{where}.keys = {keys!r}: allowed is a mapping of dotted keys to choices"
        )
    _check_values(keys, f"{where}.keys")
    for key, choice in keys.items():
        _check_choice(f"{where}.keys.{key}", choice)


def _check_choice(where: str, choice: Any) -> None:
    if isinstance(choice, list) and choice:
        return
    if not isinstance(choice, Mapping):
        raise ConfigError(
            f"{where} = {choice!r}: allowed is a list, or a mapping with low and high"
        )
    check_known(where, choice, RANGE_KEYS)
    for key in ("log", "integer"):
        if not isinstance(choice.get(key, False), bool):
            raise ConfigError(f"{where}.{key} = {choice[key]!r}: allowed is true or false")
    low, high = choice.get("low"), choice.get("high")
    integer = choice.get("integer", False)
    right = _whole if integer else _number
    if not (right(low) and right(high) and low < high):  # type: ignore[operator]
        kind, most = ("whole numbers", _WIDEST_INTEGER) if integer else ("numbers", _WIDEST)
        raise ConfigError(
            f"{where}: low = {low!r}, high = {high!r}: allowed are {kind}, low < high, both within "
            f"{most:g} of 0"
        )
    if choice.get("log", False) and (integer or low <= 0):  # type: ignore[operator]
        raise ConfigError(f"{where}.log: allowed for numbers above 0 without integer")


def _check_size(key: str, count: int) -> None:
    """Refuse what nobody could run, before it is written out.

    Raises:
        ConfigError: naming the key and the limit.
    """
    if count > _MOST:
        raise ConfigError(f"{key}: {shortened(count)} of them: allowed are at most {_MOST}")


def _check_values(values: Mapping[Any, Any], where: str) -> None:
    """Refuse a key that is no text, and the seed."""
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"{where} has a key {key!r}: allowed is text, such as optimizer.lr")
    if "seed" in values:
        raise ConfigError(f"{where}.seed: seeds of a study are listed under its key seeds")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WIDEST_INTEGER


def _number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and abs(value) < _WIDEST
