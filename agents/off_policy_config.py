"""What configs of off-policy agents have in common."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from rlplast.agents.anneal import Anneal, AnnealConfig, anneal_of
from rlplast.agents.categorical import ValuesConfig, check_values
from rlplast.agents.compiled import chosen
from rlplast.agents.sampling import SamplingConfig, sampling_of
from rlplast.agents.sequence import EnvConfig, TaskSequence, spec_of
from rlplast.agents.update_plan import Ratio, UpdatePlan, ratios_of
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.validation import Section
from rlplast.optimizers.config import OptimizerConfig
from rlplast.training.config import EvaluateConfig, RunConfig

__all__ = [
    "EnvConfig",
    "OffPolicyAgentConfig",
    "OffPolicyConfig",
    "OffPolicyEvaluateConfig",
    "Width",
]

_TOTAL = "200k env_steps"  # of one environment
Width = Annotated[int, Field(ge=1, le=1_000_000)]  # of a layer


@dataclass
class OffPolicyEvaluateConfig(EvaluateConfig):
    """How often and how long the agent is evaluated, and on which tasks of a sequence.

    Attributes:
        every: how often; null for never.
        episodes: full episodes per evaluation.
        final: share of the run, at its end, whose scores are averaged to the final score.
        steps: play for so many env_steps, summed over environments, instead of `episodes`. Episodes
            that end within them count, or the first one that ends. Short episodes count more often.
        overestimation: whether evaluations also say by how much Q exceeds the discounted return
            that followed, in ``eval/overestimation``. It costs a pass of the critics per step.
        tasks: current evaluates on the task in training, seen on all tasks so far. At the end of
            each task and of the run all tasks so far are evaluated anyway.
    """

    steps: PositiveInt | None = None
    tasks: Literal["current", "seen"] = "current"
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
        replay: where the replay's frames are gathered. host: in main memory, from which each batch
            is sent. device: the GPU has a copy of all of them, and only row numbers are sent. auto:
            device for pictures that take at most half of the GPU's free memory. Batches are equal.
        precision: fp32, or bf16 for autocast in forward passes.
        accelerate: auto, off, compile (torch.compile) or graph (CUDA graphs, on a GPU). compile
            covers whole updates if their optimizers and hooks allow it, else the losses. graph
            launches an update as one, hooks inside it included, and gives the same bits as off.
            auto is decided when a run starts: graph on a GPU, compile for a long run on a CPU; see
            `rlplast.agents.compiled.chosen`.
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

    def annealed(self) -> Anneal | None:
        """Return how n and γ move; None if they stay."""
        return anneal_of(self.anneal, self.n_step, self.gamma)

    def longest_return(self) -> int:
        """Return the most env_steps whose rewards a target sums."""
        anneal = self.annealed()
        return self.n_step if anneal is None else max(anneal.n_step)


@dataclass
class OffPolicyConfig(RunConfig):
    """A run of an off-policy agent.

    Attributes:
        total: length of the run. auto means the whole sequence of tasks, or 200k env_steps without
            one.
        env: the environment, or a sequence of tasks.
        evaluate: how often and how long the agent is evaluated.
        optimizer: the optimizer and its learning rate.
        replay_ratio: updates per env_step, after initial_steps. Fractions add up. A list such as
            ``[{from: 0%, value: 1}, {from: 50%, value: 8}]`` changes it on the way.
        agent: the agent.
    """

    total: Annotated[str, Field(examples=[_TOTAL])] = "auto"
    evaluate: OffPolicyEvaluateConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=OffPolicyEvaluateConfig
    )
    env: EnvConfig = field(default_factory=EnvConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    replay_ratio: Ratio | list[dict[str, Any]] = 1.0
    agent: OffPolicyAgentConfig = field(default_factory=OffPolicyAgentConfig)

    def check(self) -> None:
        """Check values against their ranges and against each other; write out what is auto."""
        super().check()
        agent, num_envs = self.agent, self.env.num_envs
        self._check_sequence()
        sampling_of(agent.sampling)
        check_values(agent.values)
        longest = agent.longest_return()
        self.update_plan()
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
                f"a {self.kind} run has no epochs, and env.switch.optimizer says what happens "
                "between tasks; allowed are update and false"
            )
        self.optimizer.refuse_first_phase(f"a {self.kind} run has one optimizer for all phases")
        if self.env.workers > num_envs:
            raise ConfigError(f"env.workers = {self.env.workers}: allowed is [0, {num_envs}]")
        least = num_envs * (longest + 1)
        if agent.initial_steps < least:
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is at least num_envs * "
                f"(n_step + 1) = {least}, so that there is something to sample"
            )
        total = self.total_time()
        if total.unit not in ("env_steps", "updates", "episodes"):
            raise ConfigError(
                f"total = {self.total!r}: a {self.kind} run counts env_steps, episodes or updates"
            )
        if total.unit != "updates" and agent.initial_steps >= self.env_steps_total(total):
            most = (
                "" if total.unit == "env_steps" else f" ({self.env_steps_total(total)} env_steps)"
            )
            raise ConfigError(
                f"agent.initial_steps = {agent.initial_steps}: allowed is less than the total, "
                f"{total}{most}, or nothing is ever learnt"
            )
        if self.evaluate.overestimation and self.evaluate.every is None:
            raise ConfigError(
                "evaluate.overestimation = true: it is measured in evaluations, and evaluate.every "
                "is null; give it an interval, such as 10%"
            )

    def _check_sequence(self) -> None:
        sequence = self.sequence()
        if self.total == "auto":
            self.total = _TOTAL if sequence.length is None else f"{sequence.length} env_steps"
        if sequence.each is None:
            return
        if self.env.sequence:
            joined = "+".join(dict.fromkeys(env_id for env_id, _ in sequence.envs))
            if self.env.id not in (type(self)().env.id, joined):
                raise ConfigError(
                    f"env.id = {self.env.id!r} with env.sequence, which names its environments: "
                    "leave env.id out"
                )
            self.env.id = joined
        if self.total_time().unit != "env_steps":
            raise ConfigError(f"total = {self.total!r}: a sequence of tasks counts env_steps")
        if sequence.switch.waits and self.agent.initial_steps >= sequence.each:
            raise ConfigError(
                f"agent.initial_steps = {self.agent.initial_steps}: allowed is less than "
                f"env.steps_per_task = {sequence.each}, or nothing is learnt in a task"
            )

    @property
    def units(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What lines of metrics count: phases of several tasks too, and episodes if asked."""
        counted = ["updates", "env_steps", "frames"]
        counted += ["episodes"] if _names_episodes(self) else []
        return (*counted, *([] if self.sequence().each is None else ["phase"]))

    @property
    def schedule_units(self) -> tuple[str, ...]:
        """What schedules may count: episodes too, whether lines show them or not."""
        return tuple(dict.fromkeys((*self.units, "episodes")))

    def sequence(self) -> TaskSequence:
        """Return the tasks of the run's phases.

        Raises:
            ConfigError: for keys that do not go together.
        """
        return TaskSequence.parse(self.env)

    def total_time(self) -> Time:
        """Return the run's length.

        Raises:
            ConfigError: if it is a percentage or zero, or longer than the sequence.
        """
        if self.total == "auto" and self.whole_time() is None:
            return Time.parse(_TOTAL)
        return super().total_time()

    def resolved(self, parent: RunConfig | None = None) -> "OffPolicyConfig":
        """Return the config with what ``device: auto`` and ``accelerate: auto`` stand for."""
        found: Any = super().resolved(parent)
        if self.agent.accelerate != "auto":
            return found
        choice = chosen(found)
        if isinstance(parent, OffPolicyConfig):  # whose bits it keeps; off and graph have the same
            before = parent.agent.accelerate
            choice = choice if {choice, before} == {"off", "graph"} else before
        return replace(found, agent=replace(self.agent, accelerate=choice))

    def without_graphs(self) -> "OffPolicyConfig":
        """Return the config with eager updates instead of CUDA graphs."""
        if self.agent.accelerate != "graph":
            return self
        return replace(self, agent=replace(self.agent, accelerate="off"))

    def adds_penalties_apart(self) -> bool:
        """Say that only eager updates are the same with penalties: others are compiled in parts."""
        return self.agent.accelerate in ("off", "graph")

    def whole_time(self) -> Time | None:
        """Return the env_steps of a whole sequence of tasks; None for one environment."""
        length = self.sequence().length
        return None if length is None else Time(length, "env_steps")

    def env_steps_total(self, total: Time | None = None) -> int:
        """Return the env_steps of a `total`; by default of the run as first planned.

        Of a total in episodes it is the most that these can have.
        """
        total = total or self.reference_time()
        if total.unit == "env_steps":
            return int(total.value)
        if total.unit == "episodes":
            return int(total.value) * self._longest_episode()
        return self.update_plan().env_steps_of(int(total.value))

    def _longest_episode(self) -> int:
        """Return the most env_steps of an episode."""
        limit = spec_of(self.env.id, self.env.options).max_episode_steps
        if limit is None:
            raise ConfigError(
                f"total = {self.total!r}: episodes of {self.env.id} have no limit, so that the "
                "run's length in env_steps is not known; give a total in env_steps"
            )
        return limit

    def updates_planned(self) -> int:
        """Return the updates of the run as first planned, over which learning rates fall."""
        reference = self.reference_time()
        if reference.unit == "episodes":
            return self.updates_at(self.env_steps_total(reference))
        return self._end(reference).updates

    def updates_at(self, env_steps: int) -> int:
        """Return the updates that are owed for so many env_steps."""
        return self.update_plan().updates_at(env_steps)

    def update_plan(self) -> UpdatePlan:
        """Return how many updates the run owes for its env_steps."""
        agent = self.agent
        ratios = ratios_of(self.replay_ratio, self.reference_time())
        return UpdatePlan(ratios, agent.initial_steps, agent.initial_updates, self.sequence())

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; frames are not known in advance.

        An episode has at least one env_step. So episodes are the most that there can be, and of a
        total in episodes the other counts.
        """
        total = self.total_time()
        if total.unit == "episodes":
            env_steps = self.env_steps_total(total)
            updates = self.updates_at(env_steps)
            return Clock(episodes=int(total.value), env_steps=env_steps, updates=updates)
        end = self._end(total)
        return replace(end, episodes=end.env_steps)

    def _end(self, total: Time) -> Clock:
        n, env_steps = self.env.num_envs, self.env_steps_total(total)
        phases = self.sequence().begun(env_steps)  # 0 if they are not counted
        if total.unit == "updates":
            return Clock(updates=int(total.value), env_steps=env_steps, phase=phases)
        taken = math.ceil(env_steps / n) * n  # whole vector steps
        return Clock(updates=self.updates_at(taken), env_steps=env_steps, phase=phases)


def _names_episodes(config: OffPolicyConfig) -> bool:
    """Say whether a config's length or an interval is in episodes.

    Hooks do not count: arms that differ in hooks share lines.
    """
    times = [
        config.total,
        config.percentages_of,
        config.log.every,
        config.evaluate.every,
        config.metrics.every,
        config.checkpoint.every,
        config.checkpoint.keep_every,
    ]
    return "episode" in str(times)
