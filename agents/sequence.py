"""Which task comes when: the keys of ``env`` that make one run out of several tasks."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from rlplast import envs
from rlplast.agents.switch import Switch, switch_of
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, check_choice, check_known, shortened
from rlplast.core.validation import Section, check_value

__all__ = ["EnvConfig", "TaskSequence", "shift_of", "spec_of"]


@dataclass
class EnvConfig(Section):
    """Which environment, and how many of it; or a sequence of tasks.

    Attributes:
        id: name of the environment, such as ``atari/Asterix``, ``gym/Hopper-v5``,
            ``dmc/humanoid-walk``. Leave it out with `sequence`, which names its own.
        num_envs: environments stepped together. This changes the speed, and not what any number
            counts.
        workers: processes that share the environments; 0 runs them in the main process.
        timeout: seconds that a worker may take to answer; after that it is killed and the run
            fails. Only with `workers`.
        options: options of the environment, see `rlplast list envs`. With a sequence they hold for
            all its environments.
        resume: auto, or exact. exact refuses an environment that does not go on after an
            interruption as if there had been none; see docs/how-to/bring-an-environment.md.
        sequence: environments to train on, one after the other: ids, or mappings with ``id`` and
            ``options``.
        shift: makes several tasks of one environment, instead of `sequence`: a name such as
            permuted_observations, or a mapping with ``name`` and its parameters.
        tasks: with `shift`: number of tasks.
        steps_per_task: env_steps of each task, such as 100k.
        cycles: how many times the whole sequence is trained.
        switch: what happens between two tasks: a mapping, or the name of a preset.
    """

    id: str = "atari/Asterix"
    num_envs: Annotated[int, Field(ge=1, le=100_000)] = 4
    workers: NonNegativeInt = 0
    timeout: PositiveFloat = 300.0
    options: dict[str, Any] = field(default_factory=dict)
    resume: Literal["auto", "exact"] = "auto"
    sequence: list[str | dict[str, Any]] = field(default_factory=list)
    shift: str | dict[str, Any] | None = None
    tasks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    steps_per_task: str | int | None = None
    cycles: Annotated[int, Field(ge=1, le=10_000)] = 1
    switch: str | dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSequence:
    """The tasks of a run, by phase."""

    each: int | None  # env_steps of a task; None in a run of one environment
    tasks: tuple[int, ...]  # the number of each phase's task, from 0; equal tasks have one number
    names: tuple[str, ...]  # by the task's number
    envs: tuple[tuple[str, dict[str, Any]], ...]  # id and options, by the task's number
    switch: Switch  # what happens between tasks

    @classmethod
    def parse(cls, env: EnvConfig) -> "TaskSequence":
        """Read the keys.

        Raises:
            ConfigError: for one that is not allowed, or that goes with another one only.
        """
        switch = switch_of(env.switch)
        if not env.sequence and env.shift is None:
            usual = EnvConfig()
            for name in ("tasks", "steps_per_task", "cycles", "switch"):
                if getattr(env, name) != getattr(usual, name):
                    raise ConfigError(
                        f"env.{name} = {getattr(env, name)!r}: it goes with env.sequence or "
                        "env.shift; give one of them, or leave it out"
                    )
            return cls(None, (0,), (env.id,), ((env.id, env.options),), switch)
        each = _steps(env)
        if env.shift is None:
            return cls._of_sequence(env, each, switch)
        if env.sequence:
            raise ConfigError(
                f"env.shift = {env.shift!r} with env.sequence: a shift makes tasks out of one "
                "environment; leave one of the two out"
            )
        shift_of(env.shift)
        if env.tasks is None:
            raise ConfigError("env.tasks = null: a shift needs a number of tasks, such as 10")
        names = tuple(f"task-{k}" for k in range(env.tasks))
        tasks = tuple(range(env.tasks)) * env.cycles
        return cls(each, tasks, names, ((env.id, env.options),) * env.tasks, switch)

    @classmethod
    def _of_sequence(cls, env: EnvConfig, each: int, switch: Switch) -> "TaskSequence":
        if env.tasks is not None:
            raise ConfigError(
                f"env.tasks = {env.tasks} with env.sequence: its length is their number; leave "
                "tasks out"
            )
        entries = [_entry(i, entry, env.options) for i, entry in enumerate(env.sequence)]
        keys = [json.dumps(entry, sort_keys=True) for entry in entries]
        distinct = dict(zip(keys, entries, strict=True))
        names: list[str] = []
        for base, _ in distinct.values():
            name, number = base, 1
            while name in names:  # one environment with other options
                number += 1
                name = f"{base}-{number}"
            names.append(name)
        tasks = tuple(map(list(distinct).index, keys)) * env.cycles
        return cls(each, tasks, tuple(names), tuple(distinct.values()), switch)

    @property
    def length(self) -> int | None:
        """The env_steps of all phases; None in a run of one environment."""
        return None if self.each is None else self.each * len(self.tasks)

    def start(self, phase: int) -> int:
        """Return the env_steps before a phase."""
        return phase * (self.each or 0)

    def begun(self, env_steps: int) -> int:
        """Return how many phases a run of so many env_steps begins; 0 with one environment."""
        return 0 if self.each is None else max(1, min(len(self.tasks), -(-env_steps // self.each)))

    def is_over(self, phase: int, env_steps: int) -> bool:
        """Whether a phase is at its end, and not the last one."""
        return phase + 1 < len(self.tasks) and env_steps >= self.start(phase + 1)

    def seen(self, phase: int) -> list[int]:
        """Return the tasks of all phases up to one, in the order they came."""
        return list(dict.fromkeys(self.tasks[: phase + 1]))

    def learning(self, env_steps: int, initial: int) -> int:
        """Return how many of the first `env_steps` call for updates: `initial` are waited for."""
        if self.each is None or not self.switch.waits:
            return max(0, env_steps - initial)
        full, rest = divmod(env_steps, self.each)
        return full * max(0, self.each - initial) + max(0, rest - initial)


def shift_of(value: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what ``env.shift`` says: a name, and the values of all parameters."""
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = given.pop("name", None)
    check_choice("env.shift" if isinstance(value, str) else "env.shift.name", name, envs.SHIFTS)
    known = envs.SHIFTS[str(name)]
    check_known("env.shift", given, ["name", *known])
    params = {
        key: check_value(f"env.shift.{key}", given.get(key, default), hint, default)
        for key, (default, hint) in known.items()
    }
    if "low" in params and params["low"] > params["high"]:
        raise ConfigError(
            f"env.shift.low = {params['low']}: allowed is at most high = {params['high']}"
        )
    return str(name), params


def spec_of(env_id: str, options: Mapping[str, Any]) -> envs.EnvSpec:
    """Return the description of an environment.

    Raises:
        ConfigError: for an unknown id or option, or a package that is not installed.
    """
    try:
        return envs.spec(env_id, **options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"env: {error}") from error


def _steps(env: EnvConfig) -> int:
    steps = env.steps_per_task
    if steps is None:
        raise ConfigError(
            "env.steps_per_task = null: a sequence of tasks needs the env_steps of each, as 100k"
        )
    text = str(steps)
    plain = text.strip()[-1:] in "0123456789kMB"
    near = 100_000 * env.num_envs
    with suppress(ConfigError):
        time = Time.parse(f"{text} env_steps" if plain else text)
        if time.unit == "env_steps" and time.value >= 1:
            if not time.value % env.num_envs:
                return int(time.value)
            near = max(1, round(time.value / env.num_envs)) * env.num_envs
    raise ConfigError(
        f"env.steps_per_task = {shortened(steps)}: allowed is a multiple of env.num_envs = "
        f"{env.num_envs} in env_steps, at most 1e18, such as {near}"
    )


def _entry(place: int, entry: Any, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    where = f"env.sequence[{place}]"
    if isinstance(entry, str):
        return entry, options
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        raise ConfigError(
            f"{where} = {entry!r}: allowed is an environment's id, or a mapping with id and options"
        )
    check_known(where, entry, ["id", "options"])
    given = entry.get("options", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}.options = {given!r}: allowed is a mapping of options")
    return entry["id"], options | dict(given)
