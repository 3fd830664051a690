"""How long a run is, in every unit, from its config alone."""

import dataclasses
import math
from contextlib import suppress
from typing import Any

import torch

from rlplast.agents.agent_config import AgentConfig
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.supervised.config import SupervisedConfig
from rlplast.supervised.place import batches_per_epoch, end_of_run
from rlplast.supervised.sizes import sizes_of
from rlplast.supervised.streams import Phase, phases
from rlplast.training.config import RunConfig

__all__ = ["agent_at", "length", "length_info", "phases_of", "updates_at"]


def length(config: RunConfig) -> dict[str, float]:
    """Return the counts at the end of a run, by unit; a unit that is not known is left out.

    Sets of images whose size is not known are taken for what `rlplast.supervised.sizes` says. Of
    an agent whose total is in episodes, env_steps and updates are the most that these can have;
    else episodes are left out.
    """
    end = config.horizon()
    if isinstance(config, SupervisedConfig):
        end = end_of_run(phases_of(config), config.batch_size, config.total_time())
    if isinstance(config, AgentConfig) and config.total_time().unit != "episodes":
        end = dataclasses.replace(end, episodes=0)  # all that is known is that there are no more
    return {unit: float(end[unit]) for unit in config.units if end[unit] > 0}


def length_info(config: RunConfig) -> dict[str, Any]:
    """Return what run.json says of a run's length, so that its config need not be read for it.

    Returns:
        ``total``; ``percentages_of``, what percentages refer to; counts at the end by unit: those
        ``known`` in advance, and ``expected``, as `length` has them.
    """
    expected: dict[str, float] = {}
    with suppress(ConfigError):  # the set of images is larger than it is taken for
        expected = length(config)
    return {
        "total": str(config.total_time()),
        "percentages_of": str(config.reference_time()),
        "known": {u: n for u, n in dataclasses.asdict(config.horizon()).items() if n},
        "expected": expected,
    }


def phases_of(config: SupervisedConfig) -> list[Phase]:
    """Return the phases of a classifier's stream, as many images as its set is known to have."""
    data: Any = config.data
    sizes, _ = sizes_of(data)
    train, test = (torch.arange(count) % sizes.classes for count in (sizes.train, sizes.test))
    return phases(config.stream, train, test, sizes.classes, config.seed)


def agent_at(config: AgentConfig, time: Time) -> tuple[float, float]:
    """Return the env_steps and updates that an agent has made where a prefix stops at a time.

    Of a total in episodes all episodes count as equally long, else as one env_step each.
    """
    n, end, unit = config.env.num_envs, config.horizon(), time.unit
    if unit == "phase":  # which starts once no update is owed
        start = config.sequence().start(int(time.value))
        return start, config.updates_at(start)
    if unit == "updates":
        env_steps = config.env_steps_of(int(time.value))
    else:
        env_steps = time.value * end.env_steps / end[unit] if end[unit] else 0
    env_steps = math.ceil(env_steps / n) * n  # of whole vector steps
    # A prefix stops before the updates that its last env_step owes.
    return env_steps, time.value if unit == "updates" else config.updates_at(max(0, env_steps - n))


def updates_at(config: Any, time: Time) -> float:
    """Return how many updates a run of phases, a classifier's or a GPT's, has made at a time."""
    if time.unit == "updates":
        return time.value
    if config.kind == "supervised":
        updates, left = 0.0, time.value
        for phase in phases_of(config):
            part = min(left, 1 if time.unit == "phase" else phase.epochs)
            share = part if time.unit == "phase" else part / phase.epochs
            updates += share * phase.epochs * batches_per_epoch(phase, config.batch_size)
            left -= part
        return updates
    if time.unit == "tokens":
        return time.value / (config.batch_size * config.model.context)
    starts = [phase.start for phase in config.phase_list()]
    return starts[int(time.value)] if time.value < len(starts) else config.total_time().value
