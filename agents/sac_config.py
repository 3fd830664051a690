"""The config of a SAC run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rlplast.agents.off_policy_config import EnvConfig, check_off_policy, horizon
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.core.registry import check_range
from rlplast.core.training.config import RunConfig

__all__ = ["SACAgentConfig", "SACConfig"]


@dataclass
class SACAgentConfig:
    """The agent; defaults are FIRE's and SimBa's for HumanoidBench.

    Attributes:
        network: simba (residual blocks with LayerNorm) or mlp (ReLU layers, torch's init).
        actor_width: units per layer of the actor.
        actor_blocks: residual blocks (simba) or hidden layers (mlp) of the actor.
        critic_width: units per layer of each critic.
        critic_blocks: residual blocks or hidden layers of each critic.
        critics: critics of which the smallest value counts (clipped double Q-learning).
        log_std: squash (tanh into the range) or clamp.
        log_std_min: least log σ of the policy.
        log_std_max: largest log σ of the policy.
        normalize_obs: whether networks see observations normalised by running statistics.
        lr_critic: the critics' largest learning rate; null for the optimizer's.
        lr_temperature: the temperature's; null for the optimizer's.
        batch_size: transitions per update.
        buffer_size: transitions kept.
        initial_steps: env_steps before the first update, with uniform actions.
        gamma: discount per env_step.
        n_step: env_steps summed into a target.
        tau: share of the critics the target takes over per update.
        initial_temperature: α at the start, also after a reset of the temperature.
        learn_temperature: whether α is learnt; false keeps it as it starts.
        target_entropy_scale: the policy's entropy is pulled to −scale · action_dim.
        precision: fp32, or bf16 for autocast in the networks.
        accelerate: off, or compile for torch.compile.
    """

    network: str = "simba"
    actor_width: int = 128
    actor_blocks: int = 1
    critic_width: int = 512
    critic_blocks: int = 2
    critics: int = 2
    log_std: str = "squash"
    log_std_min: float = -10.0
    log_std_max: float = 2.0
    normalize_obs: bool = True
    lr_critic: float | None = None
    lr_temperature: float | None = None
    batch_size: int = 256
    buffer_size: int = 1_000_000
    initial_steps: int = 5000
    gamma: float = 0.99
    n_step: int = 1
    tau: float = 0.005
    initial_temperature: float = 0.01
    learn_temperature: bool = True
    target_entropy_scale: float = 0.5
    precision: str = "fp32"
    accelerate: str = "off"


RANGES = {
    "network": "simba | mlp",
    "actor_width": "[1, inf)",
    "actor_blocks": "[1, 100]",
    "critic_width": "[1, inf)",
    "critic_blocks": "[1, 100]",
    "critics": "[1, 100]",
    "log_std": "squash | clamp",
    "log_std_min": "[-100, 100]",
    "log_std_max": "[-100, 100]",
    "batch_size": "[1, inf)",
    "buffer_size": "[1, inf)",
    "initial_steps": "[1, inf)",
    "gamma": "[0, 1]",
    "n_step": "[1, 1000]",
    "tau": "(0, 1]",
    "initial_temperature": "(0, inf)",
    "target_entropy_scale": "(-inf, inf)",
    "precision": "fp32 | bf16",
    "accelerate": "off | compile",
}


def _adamw() -> OptimizerConfig:
    return OptimizerConfig(name="adamw", lr=1e-4, weight_decay=0.01)


@dataclass
class SACConfig(RunConfig):
    """A SAC run.

    Attributes:
        env: the environment.
        optimizer: the optimizer of each network and its learning rate; the temperature has no
            weight decay, norms and biases have.
        replay_ratio: updates per env_step, after initial_steps; fractions accumulate.
        agent: the agent.
    """

    units: ClassVar[tuple[str, ...]] = ("updates", "env_steps", "frames")
    renamed: ClassVar[Mapping[str, str]] = {
        "agent.lr": "optimizer.lr",
        "agent.weight_decay": "optimizer.weight_decay",
    }

    kind: str = "sac"
    env: EnvConfig = field(default_factory=lambda: EnvConfig("gym/Hopper-v5", num_envs=1))
    optimizer: OptimizerConfig = field(default_factory=_adamw)
    replay_ratio: float = 2.0
    agent: SACAgentConfig = field(default_factory=SACAgentConfig)

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        agent = self.agent
        for key, allowed in RANGES.items():
            check_range(f"agent.{key}", getattr(agent, key), getattr(SACAgentConfig, key), allowed)
        for key in ("lr_critic", "lr_temperature"):
            if getattr(agent, key) is not None:
                check_range(f"agent.{key}", getattr(agent, key), 1.0, "(0, inf)")
        if agent.log_std_min >= agent.log_std_max:
            raise ConfigError(
                f"agent.log_std_min = {agent.log_std_min}: allowed is less than "
                f"agent.log_std_max = {agent.log_std_max}"
            )
        check_off_policy(self)
        for network in ("critic", "temperature"):
            self.optimizer_of(network).check()

    def optimizer_of(self, network: str) -> OptimizerConfig:
        """Return the optimizer of actor, critic or temperature."""
        lr = {"critic": self.agent.lr_critic, "temperature": self.agent.lr_temperature}
        own: dict[str, Any] = {"lr": lr.get(network) or self.optimizer.lr}
        if network == "temperature":
            own["weight_decay"] = 0.0
        return replace(self.optimizer, **own)

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; frames are not known in advance."""
        return horizon(self)
