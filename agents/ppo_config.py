"""The config of a PPO run."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rlplast.agents.agent_config import AgentConfig, EnvConfig, Width
from rlplast.agents.networks import Activation, Init, check_network
from rlplast.agents.switch import Switch
from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section
from rlplast.optimizers.config import OptimizerConfig

__all__ = ["PPOAgentConfig", "PPOConfig"]


@dataclass
class PPOAgentConfig(Section):
    """The agent; defaults are Stable-Baselines3's.

    Attributes:
        network: auto (mlp_small for vectors), nature, minatar, mlp (256-256) or mlp_small (64-64).
            Or a function of yours, as ``package.module:factory``; see
            docs/how-to/bring-a-network.md.
        shared_trunk: whether actor and critic are two heads of one network, ``actor_critic``. Else
            each has a network of its own.
        convs: ``[channels, kernel, stride]`` of each convolution, such as ``[[16, 3, 1]]``; null
            for those of the network.
        hidden: widths of the fully-connected layers before the head, such as ``[256, 64]``; null
            for those of the network.
        activation: nonlinearity after each hidden layer; null for tanh with vectors and relu with
            pictures.
        init: initializer: orthogonal (gain √2, of the critic's head 1, of the actor's 0.01, zero
            biases), torch, or xavier_uniform (with zero biases).
        log_std: log σ of continuous actions at the start, and after a reset of the actor.
        rollout_steps: env_steps of each environment between two series of updates.
        batch_size: transitions per update. It divides the transitions of a rollout.
        epochs: how many times updates go through a rollout.
        gamma: discount factor per env_step.
        gae_lambda: λ of generalised advantage estimation.
        clip: ε: a ratio of probabilities beyond 1 ± ε gains nothing more.
        clip_value: how far a value may move in the updates of a rollout before its loss gains
            nothing more, as in OpenAI's baselines and CleanRL (``clip_vloss``); null for no bound.
            Beyond Stable-Baselines3's ``clip_range_vf`` no value has a gradient, even where its
            error grows.
        entropy_coef: factor of the policy's entropy in the actor's loss.
        value_coef: factor of the mean squared error of values in the critic's loss.
        max_grad_norm: largest norm of the gradients of actor and critic together; null for no
            bound. ``optimizer.clip_norm`` bounds each network's alone.
        normalize_obs: whether observations are normalised by running statistics, and then clipped
            to ±10; pictures never are.
        normalize_rewards: whether rewards are divided by the running standard deviation of their
            discounted sum, and then clipped to ±10.
        clip_rewards: whether the agent learns from the sign of rewards; null: only on Atari.
        accelerate: auto, off, compile (torch.compile) or graph (CUDA graphs, on a GPU). compile
            covers whole updates if their optimizers and hooks allow it, else the losses. graph
            launches an update as one, hooks inside it included, and gives the same bits as off.
            auto is decided when a run starts: graph on a GPU, compile for a long run on a CPU.
    """

    network: str = "auto"
    shared_trunk: bool = False
    convs: list[list[int]] | None = None
    hidden: list[Width] | None = None
    activation: Activation | None = None
    init: Init = "orthogonal"
    log_std: Annotated[float, Field(ge=-20, le=20)] = 0.0
    rollout_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    epochs: Annotated[int, Field(ge=1, le=1000)] = 10
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    clip: PositiveFloat = 0.2
    clip_value: PositiveFloat | None = None
    entropy_coef: NonNegativeFloat = 0.0
    value_coef: PositiveFloat = 0.5
    max_grad_norm: PositiveFloat | None = 0.5
    normalize_obs: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool | None = None
    accelerate: Literal["auto", "off", "compile", "graph"] = "auto"


@dataclass
class PPOConfig(AgentConfig):
    """A PPO run.

    Attributes:
        env: the environment, or a sequence of tasks. Of ``env.switch`` optimizer and statistics
            count. env_steps of a task that do not fill a rollout are not learnt from.
        optimizer: the optimizer of each network, and its learning rate.
    """

    kind: str = "ppo"
    env: EnvConfig = field(default_factory=lambda: EnvConfig("gym/CartPole-v1", num_envs=8))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=3e-4, eps=1e-5))
    agent: PPOAgentConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=PPOAgentConfig
    )

    @property
    def transitions(self) -> int:
        """Transitions of a rollout."""
        return self.env.num_envs * self.agent.rollout_steps

    @property
    def updates_per_rollout(self) -> int:
        """Updates that a rollout owes."""
        return self.agent.epochs * (self.transitions // self.agent.batch_size)

    def check(self) -> None:
        """Check values against their ranges and against each other; write out what is auto."""
        super().check()
        agent, whole, total = self.agent, self.transitions, self.total_time()
        check_network(agent, ("convs", "hidden", "activation", "init"))
        if whole % agent.batch_size:
            near = max(n for n in range(1, min(agent.batch_size, whole) + 1) if not whole % n)
            raise ConfigError(
                f"agent.batch_size = {agent.batch_size}: allowed is a divisor of env.num_envs * "
                f"agent.rollout_steps = {whole}, such as {near}"
            )
        if total.unit != "updates":
            self._check_rollout(self.env_steps_total(total), f"those of the total, {total}")

    def _check_rollout(self, most: int, what: str) -> None:
        if self.transitions > most:
            raise ConfigError(
                f"agent.rollout_steps = {self.agent.rollout_steps}: a rollout of "
                f"{self.env.num_envs} environments has {self.transitions} env_steps, allowed are "
                f"at most {what}, or nothing is learnt"
            )

    def _check_sequence(self) -> None:
        super()._check_sequence()
        sequence = self.sequence()
        if sequence.each is None:
            return
        self._check_rollout(sequence.each, f"env.steps_per_task = {sequence.each}")
        for part in ("replay", "explore", "target"):
            chosen, usual = getattr(sequence.switch, part), getattr(Switch(), part)
            if chosen != usual:
                raise ConfigError(
                    f"env.switch.{part} = {chosen!r}: a {self.kind} run has no replay, no random "
                    "steps and no target; allowed are env.switch.optimizer and statistics"
                )

    def updates_at(self, env_steps: int) -> int:
        """Return the updates owed for so many env_steps: of whole rollouts of each task."""
        each, whole = self.sequence().each, self.transitions
        full, rest = (0, env_steps) if each is None else divmod(env_steps, each)
        rollouts = full * ((each or 0) // whole) + rest // whole
        return rollouts * self.updates_per_rollout

    def env_steps_of(self, updates: int) -> int:
        """Return the fewest env_steps that owe so many updates, of one environment."""
        return math.ceil(updates / self.updates_per_rollout) * self.transitions
