"""What configs of agents have in common, whatever they learn from."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

from pydantic import Field, PositiveInt

from rlplast.agents.compiled import chosen
from rlplast.agents.sequence import EnvConfig, TaskSequence, spec_of
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.optimizers.config import OptimizerConfig
from rlplast.training.config import EvaluateConfig, RunConfig

__all__ = ["AgentConfig", "AgentEvaluateConfig", "EnvConfig", "Width"]

_TOTAL = "200k env_steps"  # of one environment
Width = Annotated[int, Field(ge=1, le=1_000_000)]  # of a layer


@dataclass
class AgentEvaluateConfig(EvaluateConfig):
    """How often and how long the agent is evaluated, and on which tasks of a sequence.

    Attributes:
        steps: play for so many env_steps, summed over environments, instead of `episodes`. Episodes
            that end within them count, or the first one that ends. Short episodes count more often.
        tasks: current evaluates on the task in training, seen on all tasks so far. At the end of
            each task and of the run all tasks so far are evaluated anyway.
    """

    steps: PositiveInt | None = None
    tasks: Literal["current", "seen"] = "current"


@dataclass
class AgentConfig(RunConfig, ABC):
    """A run of an agent.

    Attributes:
        agent: the agent.
        total: length of the run. auto means the whole sequence of tasks, or 200k env_steps without
            one.
        env: the environment, or a sequence of tasks.
        evaluate: how often and how long the agent is evaluated.
        optimizer: the optimizer and its learning rate.
    """

    agent = cast(Any, None)  # without a type no field: it comes last, in each kind

    total: Annotated[str, Field(examples=[_TOTAL])] = "auto"
    evaluate: AgentEvaluateConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=AgentEvaluateConfig
    )
    env: EnvConfig = field(default_factory=EnvConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    @abstractmethod
    def updates_at(self, env_steps: int) -> int:
        """Return the updates that are owed for so many env_steps."""

    @abstractmethod
    def env_steps_of(self, updates: int) -> int:
        """Return the fewest env_steps that owe so many updates, of one environment."""

    def check(self) -> None:
        """Check values against their ranges and against each other; write out what is auto."""
        super().check()
        num_envs = self.env.num_envs
        self._check_sequence()
        steps, episodes = self.evaluate.steps, self.evaluate.episodes
        if steps is not None and episodes != AgentEvaluateConfig.episodes:
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
        total = self.total_time()
        if total.unit not in ("env_steps", "updates", "episodes"):
            raise ConfigError(
                f"total = {self.total!r}: a {self.kind} run counts env_steps, episodes or updates"
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

    @property
    def units(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What lines of metrics count: phases of several tasks too, and episodes if asked."""
        times = (  # not those of hooks: arms that differ in hooks share lines
            *(self.total, self.percentages_of, self.log.every, self.evaluate.every),
            *(self.metrics.every, self.checkpoint.every),
        )
        counted = ["updates", "env_steps", "frames"]
        counted += ["episodes"] if "episode" in str(times) else []
        return (*counted, *([] if self.sequence().each is None else ["phase"]))

    @property
    def schedule_units(self) -> tuple[str, ...]:
        """What schedules may count: episodes too, whether lines show them or not."""
        return tuple(dict.fromkeys((*self.units, "episodes")))

    def sequence(self) -> TaskSequence:
        """Return the tasks of the run's phases."""
        return TaskSequence.parse(self.env)

    def total_time(self) -> Time:
        """Return the run's length.

        Raises:
            ConfigError: if it is a percentage or zero, or longer than the sequence.
        """
        if self.total == "auto" and self.whole_time() is None:
            return Time.parse(_TOTAL)
        return super().total_time()

    def resolved(self, parent: RunConfig | None = None) -> "AgentConfig":
        """Return the config with what ``device: auto`` and ``accelerate: auto`` stand for."""
        resolved: Any = super().resolved(parent)
        if self.agent.accelerate != "auto":
            return resolved
        choice = chosen(resolved)
        if isinstance(parent, AgentConfig):  # whose bits it keeps; off and graph have the same
            before = parent.agent.accelerate
            choice = choice if {choice, before} == {"off", "graph"} else before
        return replace(resolved, agent=replace(self.agent, accelerate=choice))

    def without_graphs(self) -> "AgentConfig":
        """Return the config with eager updates instead of CUDA graphs."""
        if self.agent.accelerate != "graph":
            return self
        return replace(self, agent=replace(self.agent, accelerate="off"))

    def adds_penalties_apart(self) -> bool:
        """Whether updates are the same with penalties: others are compiled in parts."""
        return self.agent.accelerate in ("off", "graph")

    def whole_time(self) -> Time | None:
        """Return the env_steps of a whole sequence of tasks; None for one environment."""
        length = self.sequence().length
        return None if length is None else Time(length, "env_steps")

    def env_steps_total(self, total: Time | None = None) -> int:
        """Return the env_steps of a `total`, by default of the run as first planned.

        Of a total in episodes it is the most that these can have.
        """
        total = total or self.reference_time()
        if total.unit == "env_steps":
            return int(total.value)
        if total.unit == "episodes":
            longest = spec_of(self.env.id, self.env.options).max_episode_steps
            if longest is None:
                raise ConfigError(
                    f"total = {self.total!r}: episodes of {self.env.id} have no limit, so that the "
                    "run's length in env_steps is not known; give a total in env_steps"
                )
            return int(total.value) * longest
        return self.env_steps_of(int(total.value))

    def updates_planned(self) -> int:
        """Return the updates of the run as first planned, over which learning rates fall."""
        return self._end(self.reference_time()).updates

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; frames are not known in advance.

        Episodes are the most that there can be; of a total in episodes the other counters are.
        """
        return self._end(self.total_time())

    def _end(self, total: Time) -> Clock:
        n, env_steps = self.env.num_envs, self.env_steps_total(total)
        if total.unit == "episodes":
            updates = self.updates_at(env_steps)
            return Clock(episodes=int(total.value), env_steps=env_steps, updates=updates)
        phases = self.sequence().begun(env_steps)  # 0 if they are not counted
        if total.unit == "updates":
            updates = int(total.value)
        else:
            updates = self.updates_at(math.ceil(env_steps / n) * n)  # of whole vector steps
        return Clock(updates=updates, env_steps=env_steps, episodes=env_steps, phase=phases)
