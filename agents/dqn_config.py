"""The config of a DQN run."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rlplast.agents.networks import Activation, Init, Output, check_network, refuse_given
from rlplast.agents.off_policy_config import OffPolicyAgentConfig, OffPolicyConfig, Width
from rlplast.optimizers.config import OptimizerConfig

__all__ = ["DQNAgentConfig", "DQNConfig"]


@dataclass
class DQNAgentConfig(OffPolicyAgentConfig):
    """The agent; defaults are FIRE's and Dopamine's for Atari.

    Attributes:
        network: auto, nature, minatar, mlp (256-256), mlp_small (64-64), or a function of yours, as
            ``package.module:factory``; see docs/how-to/bring-a-network.md.
        convs: ``[channels, kernel, stride]`` of each convolution, such as ``[[16, 3, 1]]``; null
            for those of the network.
        hidden: widths of the fully-connected layers before the head, such as ``[256, 64]``; null
            for those of the network.
        activation: nonlinearity after each hidden layer.
        output: what the head's outputs pass through: linear (nothing), or softmax, for values in
            [0, 1] that add up to 1.
        init: initializer: xavier_uniform (with zero biases), torch, or orthogonal (gain √2, of the
            head 1).
        double: whether to use the targets of double Q-learning.
        huber_delta: error above which the loss is linear.
        target_every: env_steps between two moves of the target network.
        tau: share of the network that the target takes over at each move; 1 copies it.
        epsilon_start: exploration rate at the first update.
        epsilon_end: exploration rate after its decay.
        epsilon_decay: share of the run over which the exploration rate falls linearly, after
            initial_steps. On a sequence it is a share of each task.
        epsilon_eval: exploration rate in evaluations.
        exploration: each: every environment draws whether its next action is random. shared: one
            draw decides for all of them, in evaluations too; the actions are drawn one by one.
        clip_rewards: whether the agent learns from the sign of rewards; null: only on Atari.
    """

    network: str = "auto"
    convs: list[list[int]] | None = None
    hidden: list[Width] | None = None
    activation: Activation = "relu"
    output: Output = "linear"
    init: Init = "xavier_uniform"
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    initial_steps: PositiveInt = 20_000
    double: bool = False
    huber_delta: PositiveFloat = 1.0
    target_every: PositiveInt = 2000
    tau: Annotated[float, Field(gt=0, le=1)] = 1.0
    epsilon_start: Annotated[float, Field(ge=0, le=1)] = 1.0
    epsilon_end: Annotated[float, Field(ge=0, le=1)] = 0.01
    epsilon_decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    epsilon_eval: Annotated[float, Field(ge=0, le=1)] = 0.001
    exploration: Literal["each", "shared"] = "each"
    clip_rewards: bool | None = None


@dataclass
class DQNConfig(OffPolicyConfig):
    """A DQN run."""

    kind: str = "dqn"
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=6.25e-5, eps=1.5e-4)
    )
    agent: DQNAgentConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=DQNAgentConfig
    )

    def check(self) -> None:
        """Check values against their ranges and against each other; write out what is auto."""
        super().check()
        ours = ("convs", "hidden", "activation", "output", "init", "values")
        check_network(self.agent, ours)
        if self.agent.values is not None:
            why = "it is of values that are one number, and agent.values has bins"
            refuse_given(self.agent, ("output", "huber_delta"), f"{why}; leave one of the two out")
