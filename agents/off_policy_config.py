"""What configs of off-policy agents have in common."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlplast.agents.sampling import sampling_of
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.core.registry import check_range, param
from rlplast.core.training.config import EvaluateConfig, RunConfig

__all__ = ["EnvConfig", "OffPolicyAgentConfig", "OffPolicyConfig", "OffPolicyEvaluateConfig"]


@dataclass
class EnvConfig:
    """Which environment, and how many of it.

    Attributes:
        id: such as ``atari/Asterix``, ``gym/Hopper-v5``, ``dmc/humanoid-walk``.
        num_envs: instances stepped together; changes speed, not the meaning of any number.
        workers: processes they are split over; 0 for this one.
        timeout: seconds that such a process may take to answer; then the run ends.
        options: options of the environment, see `rlplast list envs`.
    """

    id: str = "atari/Asterix"
    num_envs: int = param(4, "[1, 100000]")
    workers: int = 0
    timeout: float = param(300.0, "(0, inf)")
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OffPolicyEvaluateConfig(EvaluateConfig):
    """How often and how long the agent is evaluated.

    Attributes:
        every: period; null for never.
        episodes: full episodes per evaluation.
        steps: instead of so many episodes, those that end within this many env_steps, summed over
            environments; the first that ends if none does. Short episodes count more often.
    """

    steps: int | None = param(None, "[1, inf)")


@dataclass
class OffPolicyAgentConfig:
    """What every agent's config says about experience and updates.

    Attributes:
        batch_size: transitions per update.
        buffer_size: transitions kept.
        initial_steps: env_steps before the first update, with random actions.
        gamma: discount per env_step.
        n_step: env_steps summed into a target.
        sampling: how often the replay draws which transition, a mapping with `method` and
            `params`, see ``rlplast list replay``; null for all alike.
        precision: fp32, or bf16 for autocast in forward passes.
        accelerate: off, or compile for torch.compile.
    """

    batch_size: int = param(256, "[1, 1000000]")
    buffer_size: int = param(1_000_000, "[1, 10000000000]")
    initial_steps: int = param(5000, "[1, inf)")
    gamma: float = param(0.99, "[0, 1]")
    n_step: int = param(1, "[1, 1000]")
    sampling: dict[str, Any] | None = None
    precision: str = param("fp32", "fp32 | bf16")
    accelerate: str = param("off", "off | compile")


@dataclass
class OffPolicyConfig(RunConfig):
    """A run of an off-policy agent.

    Attributes:
        env: the environment.
        optimizer: the optimizer and its learning rate.
        replay_ratio: updates per env_step, after initial_steps; fractions accumulate.
        agent: the agent.
        evaluate: how often and how long the agent is evaluated.
    """

    units: ClassVar[tuple[str, ...]] = ("updates", "env_steps", "frames")

    env: EnvConfig = field(default_factory=EnvConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    replay_ratio: float = param(1.0, "(0, 1000000]")
    agent: OffPolicyAgentConfig = field(default_factory=OffPolicyAgentConfig)
    evaluate: OffPolicyEvaluateConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=OffPolicyEvaluateConfig
    )

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        super().check()
        agent, num_envs = self.agent, self.env.num_envs
        sampling_of(agent.sampling)
        steps, episodes = self.evaluate.steps, self.evaluate.episodes
        if steps is not None and episodes != OffPolicyEvaluateConfig.episodes:
            raise ConfigError(
                f"evaluate.steps = {steps} and evaluate.episodes = {episodes}: allowed is one of "
                "them; for episodes say evaluate.steps: null"
            )
        self.optimizer.check()
        if self.optimizer.stepped != "update" or self.optimizer.renew:
            raise ConfigError(
                f"optimizer.stepped = {self.optimizer.stepped!r}, renew = {self.optimizer.renew}: "
                f"a {self.kind} run has neither epochs nor phases; allowed are update and false"
            )
        check_range("env.workers", self.env.workers, 0, f"[0, {num_envs}]")
        least = num_envs * (agent.n_step + 1)
        if agent.initial_steps < least:
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is at least num_envs * "
                f"(n_step + 1) = {least}, so that there is something to sample"
            )
        total = self.total_time()
        if total.unit == "env_steps" and agent.initial_steps >= total.value:
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is less than the total, "
                f"{total}, or nothing is ever learnt"
            )
        if total.unit not in ("env_steps", "updates"):
            raise ConfigError(
                f"total = {self.total!r}: a {self.kind} run counts env_steps or updates"
            )

    def env_steps_total(self, total: Time | None = None) -> int:
        """Return the env_steps of a `total`; by default of the run as first planned."""
        total = total or self.reference_time()
        if total.unit == "env_steps":
            return int(total.value)
        return self.agent.initial_steps + math.ceil(total.value / self.replay_ratio - 1e-9)

    def updates_planned(self) -> int:
        """Return the updates of the run as first planned, over which learning rates fall."""
        return self._end(self.reference_time()).updates

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; frames are not known in advance."""
        return self._end(self.total_time())

    def _end(self, total: Time) -> Clock:
        n, env_steps = self.env.num_envs, self.env_steps_total(total)
        if total.unit == "updates":
            return Clock(updates=int(total.value), env_steps=env_steps)
        taken = math.ceil(env_steps / n) * n  # whole vector steps
        updates = math.floor(self.replay_ratio * (taken - self.agent.initial_steps) + 1e-9)
        return Clock(updates=updates, env_steps=env_steps)
