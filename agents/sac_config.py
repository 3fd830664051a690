"""The config of a SAC run."""

from dataclasses import dataclass, field, replace
from typing import Any

from rlplast.agents.networks import ACTIVATIONS
from rlplast.agents.off_policy_config import EnvConfig, OffPolicyAgentConfig, OffPolicyConfig
from rlplast.agents.sac_networks import KINDS
from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.network.own import is_factory
from rlplast.core.registry import param
from rlplast.optimizers.config import OptimizerConfig

__all__ = ["SACAgentConfig", "SACConfig"]


@dataclass
class SACAgentConfig(OffPolicyAgentConfig):
    """The agent; defaults are FIRE's and SimBa's for HumanoidBench.

    Attributes:
        network: simba (residual blocks with LayerNorm), mlp (ReLU layers), drq (of pictures:
            convolutions that all critics share, trained by them alone, and an mlp), or a function
            of yours, as ``package.module:factory``; see docs/how-to/bring-a-network.md. Keys of
            our networks are not read then.
        init: initializer: auto (simba's and DrQ's own, torch's for mlp), or orthogonal (gain √2,
            zero biases, the head of log σ gain 1; Nikishin et al. 2022).
        actor_width: units per layer of the actor.
        actor_blocks: residual blocks (simba) or hidden layers (mlp, drq) of the actor.
        critic_width: units per layer of each critic.
        critic_blocks: residual blocks (simba) or hidden layers (mlp, drq) of each critic.
        convs: of drq: ``[channels, kernel, stride]`` of each convolution; null for DrQ's four.
        features: of drq: numbers that the encoder's features are projected to.
        hidden: of mlp and drq: widths of the hidden layers of actor and critics, such as
            ``[256, 64]``, instead of widths and blocks.
        activation: nonlinearity after each hidden layer.
        critics: number of critics. The smallest of their values counts (clipped double Q-learning).
        critic_subset: number of critics drawn at each update. The smallest of their values makes
            the target, and the actor maximises the mean over all critics (REDQ). null: the smallest
            of all critics counts, for both.
        actor_every: updates of the critics for one update of actor and temperature.
        log_std: how log σ is kept in its range: squash (by tanh) or clamp.
        log_std_min: smallest log σ of the policy.
        log_std_max: largest log σ of the policy.
        normalize_obs: whether observations are normalised by running statistics; pictures never
            are.
        lr_critic: largest learning rate of the critics; null for ``optimizer.lr``.
        lr_temperature: largest learning rate of the temperature; null for ``optimizer.lr``.
        tau: share of the critics that the target network takes over at each update.
        initial_temperature: temperature α at the start, and after a reset of the temperature.
        learn_temperature: whether α is learnt; false keeps it constant.
        target_entropy_scale: the target entropy of the policy is −scale · action_dim.
    """

    network: str = param("simba", "")
    init: str = param("auto", "auto | orthogonal")
    actor_width: int = param(128, "[1, 1000000]")
    actor_blocks: int = param(1, "[1, 100]")
    critic_width: int = param(512, "[1, 1000000]")
    critic_blocks: int = param(2, "[1, 100]")
    convs: list[list[int]] | None = None
    features: int = param(50, "[2, 1000000]")
    hidden: list[int] | None = None
    activation: str = param("relu", " | ".join(ACTIVATIONS))
    critics: int = param(2, "[1, 100]")
    critic_subset: int | None = param(None, "[1, 100]")
    actor_every: int = param(1, "[1, 1000000]")
    log_std: str = param("squash", "squash | clamp")
    log_std_min: float = param(-10.0, "[-100, 100]")
    log_std_max: float = param(2.0, "[-100, 100]")
    normalize_obs: bool = True
    lr_critic: float | None = param(None, "(0, inf)")
    lr_temperature: float | None = param(None, "(0, inf)")
    tau: float = param(0.005, "(0, 1]")
    initial_temperature: float = param(0.01, "(0, inf)")
    learn_temperature: bool = True
    target_entropy_scale: float = param(0.5, "(-inf, inf)")


@dataclass
class SACConfig(OffPolicyConfig):
    """A SAC run.

    Attributes:
        optimizer: the optimizer of each network, and its learning rate. The temperature has no
            weight decay; norm layers and biases have.
    """

    kind: str = "sac"
    env: EnvConfig = field(default_factory=lambda: EnvConfig("gym/Hopper-v5", num_envs=1))
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(name="adamw", lr=1e-4, weight_decay=0.01)
    )
    replay_ratio: float | list[dict[str, Any]] = 2.0
    agent: SACAgentConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=SACAgentConfig
    )

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        super().check()
        agent = self.agent
        if agent.log_std_min >= agent.log_std_max:
            raise ConfigError(
                f"agent.log_std_min = {agent.log_std_min}: allowed is less than "
                f"agent.log_std_max = {agent.log_std_max}"
            )
        if (agent.critic_subset or 1) > agent.critics:
            raise ConfigError(
                f"agent.critic_subset = {agent.critic_subset}: allowed is at most agent.critics = "
                f"{agent.critics}"
            )
        self._check_network()
        for network in ("critic", "temperature"):
            self.optimizer_of(network).check()

    def _check_network(self) -> None:
        agent, usual, network = self.agent, SACAgentConfig(), self.agent.network
        if not is_factory(network):
            check_choice("agent.network", network, KINDS)
        if agent.hidden is not None and (network not in ("mlp", "drq") or not agent.hidden):
            raise ConfigError(
                f"agent.hidden = {agent.hidden!r}: allowed are the widths of at least one layer, "
                f"with agent.network = 'mlp' or 'drq'; this one is {network!r}"
            )
        for name in ("convs", "features"):
            if getattr(agent, name) != getattr(usual, name) and network != "drq":
                raise ConfigError(
                    f"agent.{name} = {getattr(agent, name)!r}: it is of agent.network = 'drq', and "
                    f"this one is {network!r}; leave it out"
                )

    def optimizer_of(self, network: str) -> OptimizerConfig:
        """Return the optimizer of actor, critic or temperature."""
        lr = {"critic": self.agent.lr_critic, "temperature": self.agent.lr_temperature}
        own: dict[str, Any] = {"lr": lr.get(network) or self.optimizer.lr}
        if network == "temperature":
            own["weight_decay"] = 0.0
        return replace(self.optimizer, **own)
