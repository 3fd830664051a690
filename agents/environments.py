"""The environments that an agent of a run lives in, phase by phase."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlplast import envs
from rlplast.agents.agent_config import AgentConfig
from rlplast.agents.evaluation import environment_errors
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.rng import Streams, numpy_stream

__all__ = ["Environments"]


class Environments:
    """Environments in lockstep, with the frames that are seen of them.

    Every environment draws from a stream of its own, in each phase.

    Attributes:
        env: the environments of `phase`.
        stack: their newest frames.
        returns: of the episodes finished since the last call of `episode_metrics`.
        successes: of those of them that said whether they were one.

    Raises:
        RlplastError: if a first observation is not finite.
    """

    def __init__(self, config: AgentConfig, tasks: Tasks, streams: Streams) -> None:
        n = config.env.num_envs
        self.num_envs, self.workers, self.streams = n, config.env.workers, streams
        self._exact = config.env.resume == "exact"
        self.tasks, self.spec, self.phase = tasks, tasks.spec, 0
        self.env = self._make(0)
        self.stack = envs.FrameStack(n, self.spec)
        self.returns: list[float] = []
        self.successes: list[float] = []
        self._learned: dict[int, list[Any]] = {}  # statistics of wrappers, of tasks that were left
        try:
            self._begin("at the start")
        except BaseException:
            self.env.close()
            raise

    def _make(self, phase: int) -> envs.VectorEnv | envs.TaskVector:
        task = self.tasks.sequence.tasks[phase]
        return self.tasks.make(task, self._streams(phase), self.workers)

    def _streams(self, phase: int) -> list[np.random.Generator]:
        of_phase = ("phase", phase) if phase else ()
        names = [("environment", i, *of_phase) for i in range(self.num_envs)]
        return [numpy_stream(self.streams.seed, *name) for name in names]

    def switch(self, phase: int) -> None:
        """Go on in a phase's task, with new episodes."""
        self._learned = self.learned()
        self.env.close()
        when = f"at the start of phase {phase}"
        with environment_errors(when):
            self.env, self.phase = self._make(phase), phase
        if learned := self._learned.get(self.tasks.sequence.tasks[phase]):
            self.env.take_over(learned)
        self._begin(when)

    def learned(self) -> dict[int, list[Any]]:
        """Return the running statistics of wrappers, by task; of those that have some."""
        now = self.env.learned()
        return self._learned | ({self.tasks.sequence.tasks[self.phase]: now} if any(now) else {})

    def _begin(self, when: str) -> np.ndarray:
        """Begin new episodes; return their first observations."""
        with environment_errors(when):
            obs = self.env.reset()
        self.stack.push(obs, True)
        return obs

    def obs(self) -> np.ndarray:
        """Return what to act on, (num_envs, ...), stacked."""
        return self.stack.obs()

    def play(self, actions: np.ndarray, clock: Clock) -> envs.VectorStep:
        """Step every environment; `go_on` comes next."""
        with environment_errors(f"after {clock.env_steps} env_steps"):
            return self.env.step(actions)

    def truncated(self, step: envs.VectorStep) -> np.ndarray:
        """Return the last observations of truncated episodes, (k, ...), stacked; before `go_on`."""
        cut = np.flatnonzero(step.truncated)
        return self.stack.after(step.obs_final)[cut] if len(cut) else self.stack.obs()[:0]

    def go_on(self, step: envs.VectorStep, clock: Clock) -> Clock:
        """Put the observations of a step into `stack`, and return the new clock."""
        ended = step.terminated | step.truncated
        self.stack.push(step.obs, ended)
        self.returns += step.episode_return[ended].tolist()
        self.successes += step.success[~np.isnan(step.success)].tolist()
        return clock.advance(env_steps=self.num_envs, frames=step.frames, episodes=int(ended.sum()))

    def episode_metrics(self) -> dict[str, float]:
        """Return number, mean return and success rate of the episodes since the last call."""
        values = {"train/episodes": float(len(self.returns))}
        if self.returns:
            values["train/return"] = float(np.mean(self.returns))
        if self.successes:
            values["train/success_rate"] = float(np.mean(self.successes))
        self.returns, self.successes = [], []
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return environments and frame stacks.

        Raises:
            RlplastError: if an environment fails, or ``env.resume`` is exact and new episodes would
                begin at a resume.
        """
        with environment_errors("as its state was to be saved"):
            task = self.tasks.sequence.tasks[self.phase]
            env = self.env.state_dict(self.tasks.levels[task].name)
            if self._exact and self.env.restart_reason:
                raise ValueError(
                    f"env.resume = 'exact': a resume of env '{self.spec.id}' would begin a new "
                    f"episode: {self.env.restart_reason}; mend the environment, or set env.resume "
                    "to auto in the run's config.yaml"
                )
        return {
            "env": env,
            "stack": self.stack.frames,
            "phase": self.phase,
            "returns": self.returns,
            "successes": self.successes,
            "learned": list(map(list, self.learned().items())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, after the streams; `load_files` comes next."""
        phase = int(state.get("phase", 0))
        if phase != self.phase:
            self.env.close()
            self.env, self.phase = self._make(phase), phase
        drawn = self._streams(phase) if self.streams.parted else None  # another continuation's
        self.env.load_state_dict(state["env"], drawn)
        self._learned = {int(task): statistics for task, statistics in state.get("learned", [])}
        if learned := self._learned.get(self.tasks.sequence.tasks[phase]):
            self.env.take_over(learned)  # also where a new episode begins
        self.stack.frames[:] = state["stack"]
        self.returns = [float(value) for value in state["returns"]]
        self.successes = [float(value) for value in state.get("successes", [])]

    def load_files(self, folder: Path) -> None:
        """Begin new episodes where the open ones cannot go on; no files are read.

        Raises:
            ConfigError: if new episodes would begin, and ``env.resume`` is exact.
        """
        if self.env.restarts:
            if self._exact:
                why = self.env.restart_reason or f"env '{self.env.spec.id}' was restarted"
                raise ConfigError(
                    f"env.resume = 'exact': {why}; resume where and with the versions that it was "
                    "saved with, or set env.resume to auto in the run's config.yaml, so that new "
                    "episodes begin"
                )
            self._begin("as new episodes began after a resume")

    def close(self) -> None:
        """Close the environments and their processes."""
        self.env.close()
