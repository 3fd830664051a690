"""The environments of a run's tasks, in the space that all of them share."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rlplast import envs
from rlplast.agents.sequence import EnvConfig, TaskSequence, shift_of
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.rng import numpy_stream

__all__ = ["Tasks"]


class Tasks:
    """Makes the environments of each task.

    What a task is depends on the run's seed and the task's number alone.

    Attributes:
        sequence: which task comes when.
        spec: what all of them look like to the agent.
        levels: how each task's environments go on after an interruption, once `decide` was called.

    Raises:
        ConfigError: if the environments cannot be joined, or the shift does not go with them.
    """

    def __init__(self, env: EnvConfig, seed: int) -> None:
        self.env, self.sequence = env, TaskSequence.parse(env)
        tasks = self.sequence.envs
        self._shifts = [envs.NO_SHIFT] * len(tasks)
        self.levels = [envs.Level(envs.LEVELS[0])] * len(tasks)
        if self.sequence.each is None:
            self.spec: envs.EnvSpec = envs.spec(env.id, **env.options)
            return
        key = "env.sequence" if env.shift is None else f"env.shift = {env.shift!r}"
        try:
            if env.shift is not None:
                name, params = shift_of(env.shift)
                draw = partial(envs.draw_shift, name, envs.spec(env.id, **env.options), **params)
                first = 0 if name == "moved_goal" else 1  # else task 0 is not shifted
                self._shifts[first:] = [
                    draw(numpy_stream(seed, "task", k)) for k in range(first, len(tasks))
                ]
            specs = [envs.spec(i, **options) for i, options in map(self.of, range(len(tasks)))]
            self.spec = envs.join_specs(specs)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{key}: {error}") from error

    def decide(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Find how the run goes on after an interruption, and return it for run.json.

        What run.json says already (`known`) is not judged again.

        Returns:
            The `id` of the environment, the worst level of its tasks as `resume` with the `reason`
            why it is not a better one; and those of `tasks` that have another level, by name.

        Raises:
            ConfigError: if they cannot go on exactly, and ``env.resume`` is exact.
            RlplastError: if an environment ends its trial, or does not answer.
        """
        if known.get("resume") in envs.LEVELS:
            others = known.get("tasks", {})
            rows = [others.get(name, known) for name in self.sequence.names]
            self.levels = [envs.Level(row["resume"], row["reason"]) for row in rows]
        else:
            self.levels = self._tried()
        worst = max(self.levels, key=lambda level: envs.LEVELS.index(level.name))
        if self.env.resume == "exact" and worst.name != "exact":
            raise ConfigError(
                f"env.resume = 'exact': env '{self.spec.id}' can only be {worst.name} "
                f"({worst.reason}); give it state_dict() and load_state_dict(state), or set "
                "env.resume to auto"
            )
        pairs = zip(self.sequence.names, self.levels, strict=True)
        others = {name: _for_run_json(level) for name, level in pairs if level != worst}
        decided = {"id": self.spec.id, **_for_run_json(worst)}
        return decided | ({"tasks": others} if others else {})

    def _tried(self) -> list[envs.Level]:
        """Return the level of each task; equal environments are tried once."""
        tried: dict[str, envs.Level] = {}
        tasks = list(map(self.of, range(len(self.levels))))
        for env_id, options in tasks:
            key = repr((env_id, options))
            if key in tried:
                continue
            try:
                level = envs.find_resume(env_id, self.env.workers, self.env.timeout, **options)
            except (ValueError, ImportError) as error:
                raise ConfigError(f"env: {error}") from error
            except (envs.EnvFailed, envs.WorkerDied) as error:
                raise RlplastError(
                    f"env '{env_id}', in the trial of how a run goes on with it after an "
                    f"interruption: {error}"
                ) from error
            tried[key] = level
        return [tried[repr(task)] for task in tasks]

    def of(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return id and options of a task's environment."""
        env_id, options = self.sequence.envs[number]
        shift = self._shifts[number]
        scaled = {key: factor * options.get(key, 1.0) for key, factor in shift.factors.items()}
        return env_id, options | scaled | shift.options

    def make(
        self, number: int, rngs: list[np.random.Generator], workers: int = 0
    ) -> envs.VectorEnv | envs.TaskVector:
        """Build the environments of a task, one per generator.

        Raises:
            ConfigError: if they cannot be built, such as in worker processes.
        """
        env_id, options = self.of(number)
        try:
            made = envs.make_vector(env_id, rngs, workers, self.env.timeout, **options)
        except (ValueError, ImportError, envs.EnvFailed, envs.WorkerDied) as error:
            raise ConfigError(f"env: {error}") from error
        shift = self._shifts[number]
        plain = made.spec == self.spec and shift is envs.NO_SHIFT
        return made if plain else envs.TaskVector(made, self.spec, shift)


def _for_run_json(level: envs.Level) -> dict[str, str]:
    return {"resume": level.name, "reason": level.reason}
