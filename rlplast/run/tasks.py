"""Which task a run is in, for those who read what it left."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlplast.training.config import RunConfig

__all__ = ["tasks_of"]


def tasks_of(config: RunConfig | Mapping[str, Any]) -> list[str]:
    """Return the name of each phase's task in a run of an agent, as in ``eval/<task>/return_mean``.

    A task that comes again has its name again. A run may end before the last phase begins.

    Args:
        config: a config, or what config.yaml holds.

    Returns:
        One name for a run of one environment, and none for a run without any.

    Raises:
        ConfigError: if the keys of ``env`` do not go together.

    Examples:
        >>> tasks_of({"env": {"sequence": ["a/x", "a/y"], "steps_per_task": "9k", "cycles": 2}})
        ['a/x', 'a/y', 'a/x', 'a/y']
    """
    from rlplast.agents.sequence import EnvConfig, TaskSequence

    env = config.get("env") if isinstance(config, Mapping) else getattr(config, "env", None)
    if not isinstance(env, Mapping | EnvConfig):  # none, or what a plug-in calls so
        return []
    given = env if isinstance(env, Mapping) else vars(env)
    known = [field.name for field in dataclasses.fields(EnvConfig)]
    sequence = TaskSequence.parse(EnvConfig(**{k: v for k, v in given.items() if k in known}))
    return [sequence.names[task] for task in sequence.tasks]
