"""What configs of off-policy agents have in common."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from rlplast.agents.agent_config import AgentConfig, AgentEvaluateConfig, EnvConfig, Width
from rlplast.agents.anneal import AnnealConfig, check_anneal
from rlplast.agents.categorical import ValuesConfig, check_values
from rlplast.agents.sampling import SamplingConfig, sampling_of
from rlplast.agents.update_plan import Ratio, UpdatePlan, ratios_of
from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section

__all__ = [
    "EnvConfig",
    "OffPolicyAgentConfig",
    "OffPolicyConfig",
    "OffPolicyEvaluateConfig",
    "Width",
]


@dataclass
class OffPolicyEvaluateConfig(AgentEvaluateConfig):
    """How often and how long the agent is evaluated, and on which tasks of a sequence.

    Attributes:
        overestimation: whether evaluations also say by how much Q exceeds the discounted return
            that followed, in ``eval/overestimation``. It costs a pass of the critics per step.
    """

    overestimation: bool = False


@dataclass
class OffPolicyAgentConfig(Section):
    """What every agent's config says about experience and updates.

    Attributes:
        batch_size: transitions per update.
        buffer_size: transitions that the replay holds.
        initial_steps: env_steps with random actions before the first update. On a sequence this
            holds for every task, unless ``env.switch`` says otherwise.
        initial_updates: updates at the end of `initial_steps`, before the next env_step, beside
            those that `replay_ratio` owes. With few `initial_steps` and many updates this is heavy
            priming (Nikishin et al. 2022). A DQN's target, which moves with env_steps, stands still
            meanwhile. On a sequence they are the first task's.
        gamma: discount factor per env_step.
        n_step: env_steps whose rewards are summed into a target.
        anneal: n and γ that move after each reset: a mapping such as ``{every: 40000, updates:
            10000, n_step: 10, gamma: 0.97}``. In each cycle of `every` updates they begin with
            these values and reach `n_step` and `gamma` after `updates` (BBF); null: they stay.
        values: values as probabilities of bins, trained with a cross-entropy: a mapping such as
            ``{kind: hl_gauss, bins: 51, low: -10, high: 10, sigma: 0.75}``, of kind hl_gauss,
            two_hot or c51; null: a value is one number, trained with a squared error.
        sampling: how the replay draws transitions: a mapping with `method` and `params`, see
            ``rlplast list replay``; null draws all with the same probability.
        random_shift: pixels by which each picture of a batch is moved at most, along both sides,
            before the networks see it (DrQ: 4); 0 leaves it.
        replay: where frames are gathered. host: in main memory, from which each batch is sent.
            device: on the GPU, which has a copy of all. auto: device for pictures that take at most
            half of the GPU's free memory. Batches are equal.
        precision: fp32, or bf16 for autocast in forward passes.
        accelerate: auto, off, compile (torch.compile) or graph (CUDA graphs, on a GPU). compile
            covers whole updates if their optimizers and hooks allow it, else the losses. graph
            launches an update as one, hooks inside it included, and gives the same bits as off.
            auto is decided when a run starts: graph on a GPU, compile for a long run on a CPU.
    """

    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    buffer_size: Annotated[int, Field(ge=1, le=10_000_000_000)] = 1_000_000
    initial_steps: PositiveInt = 5000
    initial_updates: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    n_step: Annotated[int, Field(ge=1, le=1000)] = 1
    anneal: AnnealConfig | None = None
    values: ValuesConfig | None = None
    sampling: SamplingConfig | None = None
    random_shift: Annotated[int, Field(ge=0, le=1000)] = 0
    replay: Literal["auto", "host", "device"] = "host"
    precision: Literal["fp32", "bf16"] = "fp32"
    accelerate: Literal["auto", "off", "compile", "graph"] = "auto"

    def longest_return(self) -> int:
        """Return the most env_steps whose rewards a target sums."""
        first = None if self.anneal is None else self.anneal.n_step
        return max(self.n_step, first or 0)


@dataclass
class OffPolicyConfig(AgentConfig):
    """A run of an off-policy agent.

    Attributes:
        replay_ratio: updates per env_step, after initial_steps. Fractions add up. A list such as
            ``[{from: 0%, value: 1}, {from: 50%, value: 8}]`` changes it on the way.
    """

    evaluate: OffPolicyEvaluateConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=OffPolicyEvaluateConfig
    )
    replay_ratio: Ratio | list[dict[str, Any]] = 1.0
    agent: OffPolicyAgentConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=OffPolicyAgentConfig
    )

    def check(self) -> None:
        """Check values against their ranges and against each other; write out what is auto."""
        super().check()
        agent, num_envs = self.agent, self.env.num_envs
        sampling_of(agent.sampling)
        check_values(agent.values)
        check_anneal(agent.anneal, agent.gamma)
        self.update_plan()
        least = num_envs * (agent.longest_return() + 1)
        if agent.initial_steps < least:
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is at least num_envs * "
                f"(n_step + 1) = {least}, so that there is something to sample"
            )
        total = self.total_time()
        if total.unit != "updates" and agent.initial_steps >= self.env_steps_total(total):
            most = f" ({self.env_steps_total(total)} env_steps)"
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is less than the total, "
                f"{total}{most if total.unit == 'episodes' else ''}, or nothing is ever learnt"
            )
        if self.evaluate.overestimation and self.evaluate.every is None:
            raise ConfigError(
                "evaluate.overestimation = true: it is measured in evaluations, and evaluate.every "
                "is null; give it an interval, such as 10%"
            )

    def _check_sequence(self) -> None:
        super()._check_sequence()
        sequence = self.sequence()
        if sequence.each is None:
            return
        if sequence.switch.waits and self.agent.initial_steps >= sequence.each:
            raise ConfigError(
                f"agent.initial_steps = {self.agent.initial_steps}: allowed is less than "
                f"env.steps_per_task = {sequence.each}, or nothing is learnt in a task"
            )

    def updates_at(self, env_steps: int) -> int:
        """Return the updates that are owed for so many env_steps."""
        return self.update_plan().updates_at(env_steps)

    def env_steps_of(self, updates: int) -> int:
        """Return the fewest env_steps that owe so many updates, in a run of one environment."""
        return self.update_plan().env_steps_of(updates)

    def update_plan(self) -> UpdatePlan:
        """Return how many updates the run owes for its env_steps."""
        agent = self.agent
        ratios = ratios_of(self.replay_ratio, self.reference_time())
        return UpdatePlan(ratios, agent.initial_steps, agent.initial_updates, self.sequence())
