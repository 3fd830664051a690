"""The config of a DQN run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rlplast.agents.networks import ARCHITECTURES, INIT_LAWS
from rlplast.agents.off_policy_config import EnvConfig, check_off_policy, env_steps_total, horizon
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.core.registry import check_range
from rlplast.core.training.config import RunConfig

__all__ = ["DQNAgentConfig", "DQNConfig"]


@dataclass
class DQNAgentConfig:
    """The agent; defaults are FIRE's and Dopamine's for Atari.

    Attributes:
        network: auto, nature, minatar or mlp.
        init: xavier_uniform (zero biases) or torch.
        batch_size: transitions per update.
        buffer_size: transitions kept.
        initial_steps: env_steps before the first update.
        gamma: discount per env_step.
        n_step: env_steps summed into a target.
        double: whether targets are double Q-learning's.
        huber_delta: where the loss turns linear.
        target_every: env_steps between copies to the target network.
        epsilon_start: exploration at the first update.
        epsilon_end: exploration at the end of its decay.
        epsilon_decay: share of the run over which it decays linearly, after initial_steps.
        epsilon_eval: exploration during evaluation.
        policy: online or target: the network that acts.
        clip_rewards: whether the agent learns from the sign of rewards; null: on Atari only.
        precision: fp32, or bf16 for autocast in forward passes.
        accelerate: off, or compile for torch.compile.
    """

    network: str = "auto"
    init: str = "xavier_uniform"
    batch_size: int = 32
    buffer_size: int = 1_000_000
    initial_steps: int = 20_000
    gamma: float = 0.99
    n_step: int = 1
    double: bool = False
    huber_delta: float = 1.0
    target_every: int = 2000
    epsilon_start: float = 1.0
    epsilon_end: float = 0.01
    epsilon_decay: float = 0.1
    epsilon_eval: float = 0.001
    policy: str = "online"
    clip_rewards: bool | None = None
    precision: str = "fp32"
    accelerate: str = "off"


RANGES = {
    "batch_size": "[1, inf)",
    "buffer_size": "[1, inf)",
    "initial_steps": "[1, inf)",
    "gamma": "[0, 1]",
    "n_step": "[1, 1000]",
    "huber_delta": "(0, inf)",
    "target_every": "[1, inf)",
    "epsilon_start": "[0, 1]",
    "epsilon_end": "[0, 1]",
    "epsilon_decay": "[0, 1]",
    "epsilon_eval": "[0, 1]",
    "precision": "fp32 | bf16",
    "accelerate": "off | compile",
    "policy": "online | target",
    "init": " | ".join(INIT_LAWS),
}


def _adam() -> OptimizerConfig:
    return OptimizerConfig(lr=6.25e-5, eps=1.5e-4)


@dataclass
class DQNConfig(RunConfig):
    """A DQN run.

    Attributes:
        env: the environment.
        optimizer: the optimizer and its learning rate.
        replay_ratio: updates per env_step, after initial_steps; fractions accumulate.
        agent: the agent.
    """

    units: ClassVar[tuple[str, ...]] = ("updates", "env_steps", "frames")
    renamed: ClassVar[Mapping[str, str]] = {
        "agent.lr": "optimizer.lr",
        "agent.adam_eps": "optimizer.eps",
        "agent.max_grad_norm": "optimizer.clip_norm",
    }

    kind: str = "dqn"
    env: EnvConfig = field(default_factory=EnvConfig)
    optimizer: OptimizerConfig = field(default_factory=_adam)
    replay_ratio: float = 1.0
    agent: DQNAgentConfig = field(default_factory=DQNAgentConfig)

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        agent = self.agent
        for key, allowed in RANGES.items():
            check_range(f"agent.{key}", getattr(agent, key), getattr(DQNAgentConfig, key), allowed)
        names = ("auto", *ARCHITECTURES)
        if agent.network not in names:
            raise ConfigError(
                f"agent.network = {agent.network!r}: {did_you_mean(agent.network, names)}"
            )
        check_off_policy(self)

    def env_steps_total(self) -> int:
        """Return the env_steps the run takes; of an extended run, those first planned."""
        return env_steps_total(self, self.reference_time())

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; frames are not known in advance."""
        return horizon(self)
