"""Which task a run is in, for those who read what it left."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlplast.training.config import RunConfig

__all__ = ["tasks_of"]


def tasks_of(config: RunConfig | Mapping[str, Any]) -> list[str]:
    """Return the name of each phase's task in a run of an agent, as in ``eval/<task>/return_mean``.

    One for a run of one environment, none for a run without any. A task that comes again has its
    name again; a run may end before its last phase. `config` may be what config.yaml holds.

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
