"""The config of a SAC run."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from rlplast.agents.networks import Activation, refuse_given
from rlplast.agents.off_policy_config import EnvConfig, OffPolicyAgentConfig, OffPolicyConfig, Width
from rlplast.agents.sac_networks import KINDS
from rlplast.agents.update_plan import Ratio
from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.network.factory import is_factory
from rlplast.optimizers.config import OptimizerConfig

__all__ = ["SACAgentConfig", "SACConfig"]


@dataclass
class SACAgentConfig(OffPolicyAgentConfig):
    """The agent; defaults are FIRE's and SimBa's for HumanoidBench.

    Attributes:
        network: simba (residual blocks with LayerNorm), simba_v2 (features and rows of weights of
            length 1), bro (BroNet: LayerNorm after each layer), mlp (ReLU layers), drq (of
            pictures: convolutions that all critics share, trained by them alone, and an mlp), or a
            function of yours, as ``package.module:factory``; see docs/how-to/bring-a-network.md.
            Keys of our networks are not read then.
        init: initializer: auto (torch's for mlp, the others' own), or orthogonal (gain √2, zero
            biases, the head of log σ gain 1; Nikishin et al. 2022), which is bro's own; rows of
            simba_v2 have length 1 in any case.
        actor_width: units per layer of the actor.
        actor_blocks: residual blocks, or hidden layers (mlp, drq), of the actor.
        critic_width: units per layer of each critic.
        critic_blocks: residual blocks, or hidden layers (mlp, drq), of each critic.
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
        normalize_obs: whether observations are normalised by running statistics, and then clipped
            to ±10; pictures never are.
        scale_rewards: largest discounted return after scaling (SimbaV2: 5). Rewards are divided by
            the running standard deviation of discounted returns, or by more where a return would
            exceed this number; null: they stay.
        lr_critic: largest learning rate of the critics; null for ``optimizer.lr``.
        lr_temperature: largest learning rate of the temperature; null for ``optimizer.lr``.
        tau: share of the critics that the target network takes over at each update.
        initial_temperature: temperature α at the start, and after a reset of the temperature.
        learn_temperature: whether α is learnt; false keeps it constant.
        target_entropy_scale: the target entropy of the policy is −scale · action_dim.
    """

    network: str = "simba"
    init: Literal["auto", "orthogonal"] = "auto"
    actor_width: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    actor_blocks: Annotated[int, Field(ge=1, le=100)] = 1
    critic_width: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    critic_blocks: Annotated[int, Field(ge=1, le=100)] = 2
    convs: list[list[int]] | None = None
    features: Annotated[int, Field(ge=2, le=1_000_000)] = 50
    hidden: list[Width] | None = None
    activation: Activation = "relu"
    critics: Annotated[int, Field(ge=1, le=100)] = 2
    critic_subset: Annotated[int, Field(ge=1, le=100)] | None = None
    actor_every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    log_std: Literal["squash", "clamp"] = "squash"
    log_std_min: Annotated[float, Field(ge=-100, le=100)] = -10.0
    log_std_max: Annotated[float, Field(ge=-100, le=100)] = 2.0
    normalize_obs: bool = True
    scale_rewards: PositiveFloat | None = None
    lr_critic: PositiveFloat | None = None
    lr_temperature: PositiveFloat | None = None
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    initial_temperature: PositiveFloat = 0.01
    learn_temperature: bool = True
    target_entropy_scale: float = 0.5


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
    replay_ratio: Ratio | list[dict[str, Any]] = 2.0
    agent: SACAgentConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=SACAgentConfig
    )

    def check(self) -> None:
        """Check values against their ranges and against each other."""
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
        network = agent.network
        if not is_factory(network):
            check_choice("agent.network", network, KINDS)
        if agent.hidden is not None and (network not in ("mlp", "drq") or not agent.hidden):
            raise ConfigError(
                f"agent.hidden = {agent.hidden!r}: allowed are the widths of at least one layer, "
                f"with agent.network = 'mlp' or 'drq'; this one is {network!r}"
            )
        if network != "drq":
            why = f"it is of agent.network = 'drq', and this one is {network!r}; leave it out"
            refuse_given(agent, ("convs", "features"), why)
        for name in ("critic", "temperature"):
            self.optimizer_of(name).check()

    def optimizer_of(self, network: str) -> OptimizerConfig:
        """Return the optimizer of actor, critic or temperature."""
        lr = {"critic": self.agent.lr_critic, "temperature": self.agent.lr_temperature}
        optimizer = replace(self.optimizer, lr=lr.get(network) or self.optimizer.lr)
        return replace(optimizer, weight_decay=0.0) if network == "temperature" else optimizer
