"""The environments of a run's tasks, in the space that all of them share.

What a task is depends on the run's seed and the task's number alone, so that a later visit finds it
as it was.
"""

from functools import partial
from typing import Any

import numpy as np

from rlplast import envs
from rlplast.agents.sequence import EnvConfig, TaskSequence, shift_of
from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream

__all__ = ["Tasks"]


class Tasks:
    """Makes the environments of each task.

    Args:
        env: the section of a config.
        seed: the run's.

    Attributes:
        sequence: which task comes when.
        spec: what all of them look like to the agent.

    Raises:
        ConfigError: if the environments cannot be joined, or the shift does not go with them.
    """

    def __init__(self, env: EnvConfig, seed: int) -> None:
        self.env, self.sequence = env, TaskSequence.parse(env)
        tasks = self.sequence.envs
        self._shifts = [envs.NO_SHIFT] * len(tasks)
        if self.sequence.each is None:
            self.spec: envs.EnvSpec = envs.spec(env.id, **env.options)
            self._check_resume()
            return
        key = "env.sequence" if env.shift is None else f"env.shift = {env.shift!r}"
        try:
            if env.shift is not None:
                name, params = shift_of(env.shift)
                own = envs.spec(env.id, **env.options)
                draw = partial(envs.draw_shift, name, own, **params)
                self._shifts[1:] = [
                    draw(numpy_stream(seed, "task", k)) for k in range(1, len(tasks))
                ]
            specs = [envs.spec(i, **options) for i, options in map(self.of, range(len(tasks)))]
            self.spec = envs.join_specs(specs)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{key}: {error}") from error
        self._check_resume()

    def _check_resume(self) -> None:
        found = self.spec
        if self.env.resume == "exact" and found.resume != "exact":
            raise ConfigError(
                f"env.resume = 'exact': env '{found.id}' can only be {found.resume} "
                f"({found.resume_reason}); give it state_dict() and load_state_dict(state), or set "
                "env.resume to auto"
            )

    def of(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return id and options of a task's environment."""
        env_id, options = self.sequence.envs[number]
        drawn = {k: v * options.get(k, 1.0) for k, v in self._shifts[number].options.items()}
        return env_id, options | drawn

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
        except (ValueError, ImportError, envs.WorkerDied) as error:
            raise ConfigError(f"env: {error}") from error
        shift = self._shifts[number]
        plain = made.spec == self.spec and shift is envs.NO_SHIFT
        return made if plain else envs.TaskVector(made, self.spec, shift)
