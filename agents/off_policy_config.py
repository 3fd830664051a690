"""What configs of off-policy agents have in common.

- `EnvConfig`: the ``env`` part.
- `check_off_policy`: checks optimizer, replay ratio, environments, first update and total.
- `env_steps_total`, `horizon`, `updates_planned`: how long a run is in each unit.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.core.registry import check_range

__all__ = [
    "AgentConfig",
    "EnvConfig",
    "OffPolicyConfig",
    "check_off_policy",
    "env_steps_total",
    "horizon",
    "updates_planned",
]


@dataclass
class EnvConfig:
    """Which environment, and how many of it.

    Attributes:
        id: such as ``atari/Asterix``, ``gym/Hopper-v5``, ``dmc/humanoid-walk``.
        num_envs: instances stepped together; changes speed, not the meaning of any number.
        workers: processes they are split over; 0 for this one.
        options: options of the environment, see `rlplast list envs`.
    """

    id: str = "atari/Asterix"
    num_envs: int = 4
    workers: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class AgentConfig(Protocol):
    """What an agent's config says about experience."""

    buffer_size: int
    initial_steps: int
    batch_size: int
    n_step: int
    gamma: float


class OffPolicyConfig(Protocol):
    """What configs of off-policy agents have in common."""

    kind: str
    total: str
    env: EnvConfig
    replay_ratio: float
    optimizer: OptimizerConfig

    @property
    def agent(self) -> AgentConfig:
        """The agent's own keys."""
        ...

    def total_time(self) -> Time:
        """Return the run's length."""
        ...

    def reference_time(self) -> Time:
        """Return the length that was first planned."""
        ...


def check_off_policy(config: OffPolicyConfig) -> None:
    """Check optimizer, replay ratio, environments, first update and total of a config.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    agent, num_envs = config.agent, config.env.num_envs
    config.optimizer.check()
    if config.optimizer.stepped != "update" or config.optimizer.renew:
        raise ConfigError(
            f"optimizer.stepped = {config.optimizer.stepped!r}, renew = {config.optimizer.renew}: "
            f"a {config.kind} run has neither epochs nor phases; allowed are update and false"
        )
    check_range("replay_ratio", config.replay_ratio, 1.0, "(0, inf)")
    check_range("env.num_envs", num_envs, 1, "[1, inf)")
    check_range("env.workers", config.env.workers, 0, f"[0, {num_envs}]")
    least = num_envs * (agent.n_step + 1)
    if agent.initial_steps < least:
        raise ConfigError(
            f"agent.initial_steps = {agent.initial_steps}: allowed is at least num_envs * "
            f"(n_step + 1) = {least}, so that there is something to sample"
        )
    total = config.total_time()
    if total.unit == "env_steps" and agent.initial_steps >= total.value:
        raise ConfigError(
            f"agent.initial_steps = {agent.initial_steps}: allowed is less than the total, "
            f"{total}, or nothing is ever learnt"
        )
    if total.unit not in ("env_steps", "updates"):
        raise ConfigError(
            f"total = {config.total!r}: a {config.kind} run counts env_steps or updates"
        )


def env_steps_total(config: OffPolicyConfig, total: Time) -> int:
    """Return the env_steps a run of length `total` takes."""
    if total.unit == "env_steps":
        return int(total.value)
    return config.agent.initial_steps + math.ceil(total.value / config.replay_ratio - 1e-9)


def updates_planned(config: OffPolicyConfig) -> int:
    """Return the updates of the run as first planned, over which learning rates fall."""
    return horizon(config, config.reference_time()).updates


def horizon(config: OffPolicyConfig, total: Time | None = None) -> Clock:
    """Return the clock at the end of the run; frames are not known in advance.

    Args:
        config: the run.
        total: its length; default: the config's.
    """
    total, n = total or config.total_time(), config.env.num_envs
    env_steps = env_steps_total(config, total)
    if total.unit == "updates":
        return Clock(updates=int(total.value), env_steps=env_steps)
    taken = math.ceil(env_steps / n) * n  # whole vector steps
    updates = math.floor(config.replay_ratio * (taken - config.agent.initial_steps) + 1e-9)
    return Clock(updates=updates, env_steps=env_steps)
