"""Environments and replay of an off-policy agent, and the updates it owes for them."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlplast import envs
from rlplast.agents.device_frames import fits
from rlplast.agents.evaluation import environment_errors
from rlplast.agents.off_policy_config import OffPolicyConfig
from rlplast.agents.replay import Replay
from rlplast.agents.sampling import sampling_of
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.rng import numpy_stream

__all__ = ["Experience"]


class Experience:
    """Environments, replay, and the updates owed for the transitions stored.

    Args:
        config: of the run; every environment draws from a stream of its own, in each phase.
        tasks: makes the environments.
        rng: the stream batches are drawn from.
        device: where batches live.
        clip_rewards: whether the replay stores the sign of rewards only.

    Raises:
        ConfigError: if the replay is too small ever to give a batch.
        RlplastError: if a first observation is not finite.
    """

    def __init__(
        self,
        config: OffPolicyConfig,
        tasks: Tasks,
        rng: np.random.Generator,
        device: torch.device,
        clip_rewards: bool,
    ) -> None:
        agent, n = config.agent, config.env.num_envs
        self.num_envs, self.workers, self.seed = n, config.env.workers, config.seed
        self._exact = config.env.resume == "exact"
        self.tasks, self.phase = tasks, 0
        self.spec = spec = tasks.spec
        # Then one transition can always be sampled: of the newest episode or, if that is shorter
        # than n_step, the last one of the episode before.
        longest = agent.longest_return()
        least = n * (spec.frame_stack + longest + 1)
        if agent.buffer_size < least:
            raise ConfigError(
                f"agent.buffer_size = {agent.buffer_size}: allowed is at least num_envs * "
                f"(frame_stack + n_step + 1) = {least}, so that there is always something to "
                "sample"
            )
        self.plan = config.update_plan()
        self.clip_rewards = clip_rewards
        self.replay = Replay(
            capacity=agent.buffer_size,
            num_envs=n,
            obs_shape=spec.obs_shape,
            obs_dtype=spec.obs_dtype,
            frame_stack=spec.frame_stack,
            n_step=longest,
            gamma=agent.gamma,
            batch_size=agent.batch_size,
            rng=rng,
            device=device,
            action_dim=spec.action_dim,
            sampling=sampling_of(agent.sampling),
            repeat_first=spec.repeat_first,
            frames_on_device=self._frames_on_device(agent, device),
        )
        self.env = self._make(0)
        self.stack = envs.FrameStack(n, spec)
        self.credit = 0.0
        self.returns: list[float] = []
        self.last: envs.VectorStep | None = None  # step of this process
        with ExitStack() as cleanup:
            cleanup.callback(self.env.close)
            self._begin("at the start")
            cleanup.pop_all()  # it answered: it stays

    def _frames_on_device(self, agent: Any, device: torch.device) -> bool:
        """Say whether the device has the frames too: ``agent.replay`` asks for it, or they fit."""
        if agent.replay == "device" and device.type != "cuda":
            raise ConfigError(
                f"agent.replay = 'device' on device {device}: allowed here are auto and host"
            )
        row = math.prod(self.spec.obs_shape) * np.dtype(self.spec.obs_dtype).itemsize
        worthwhile = len(self.spec.obs_shape) > 1 and fits(agent.buffer_size * row, device)
        return agent.replay == "device" or (agent.replay == "auto" and worthwhile)

    def _make(self, phase: int) -> envs.VectorEnv | envs.TaskVector:
        of_phase = ("phase", phase) if phase else ()
        names = [("environment", i, *of_phase) for i in range(self.num_envs)]
        rngs = [numpy_stream(self.seed, *name) for name in names]
        return self.tasks.make(self.tasks.sequence.tasks[phase], rngs, self.workers)

    def switch(self, phase: int) -> None:
        """Go on in a phase's task.

        Running episodes end as truncated at their last observation, whether or not the replay
        keeps them: no transition and no n-step window reaches into another task.

        Raises:
            RlplastError: as `environment_errors` says.
        """
        self.env.close()
        when = f"at the start of phase {phase}"
        with environment_errors(when):
            self.env, self.phase = self._make(phase), phase
        if self.tasks.sequence.switch.replay == "clear":
            self.replay.clear()
        self._begin(when)

    def _begin(self, when: str) -> None:
        """Begin new episodes, and store their first observations."""
        with environment_errors(when):
            obs = self.env.reset()
        self.replay.start(obs)
        self.stack.push(obs, True)

    def obs(self) -> np.ndarray:
        """Return what to act on, (num_envs, ...), stacked."""
        return self.stack.obs()

    def owes(self) -> bool:
        """Whether the updates that `plan` owes exceed those done."""
        return self.credit > 1 - 1e-9

    def paid(self) -> None:
        """Note that one owed update was done."""
        self.credit -= 1

    def step(self, actions: np.ndarray, clock: Clock) -> Clock:
        """Step every environment, store the transitions, and return the new clock.

        Raises:
            RlplastError: as `environment_errors` says; the transition is not stored.
        """
        with environment_errors(f"after {clock.env_steps} env_steps"):
            step = self.last = self.env.step(actions)
        self.replay.add(
            actions,
            np.sign(step.reward) if self.clip_rewards else step.reward,
            step.terminated,
            step.truncated,
            step.obs,
            step.obs_final,
        )
        ended = step.terminated | step.truncated
        self.stack.push(step.obs, ended)
        self.returns += step.episode_return[ended].tolist()
        after = clock.advance(env_steps=len(actions), frames=step.frames, episodes=int(ended.sum()))
        self.credit += self.plan.owed(clock.env_steps, after.env_steps)
        return after

    def episode_metrics(self) -> dict[str, float]:
        """Return the episodes finished since the last call: their number and mean return."""
        values = {"train/episodes": float(len(self.returns))}
        if self.returns:
            values["train/return"] = float(np.mean(self.returns))
        self.returns = []
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return environments, frame stacks and counters; the replay's bulk is in files.

        Raises:
            RlplastError: as `environment_errors` says, or if new episodes would begin at a resume,
                and ``env.resume`` is exact.
        """
        with environment_errors("as its state was to be saved"):
            env = self.env.state_dict()
            if self._exact and self.env.restart_reason:
                raise ValueError(
                    f"env.resume = 'exact': a resume of env '{self.spec.id}' would begin a new "
                    f"episode: {self.env.restart_reason}; mend the environment, or set env.resume "
                    "to auto in the run's config.yaml"
                )
        return {
            "env": env,
            "replay": self.replay.state_dict(),
            "stack": self.stack.frames,
            "credit": self.credit,
            "phase": self.phase,
            "returns": self.returns,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay follows in `load_files`."""
        phase = int(state.get("phase", 0))
        if phase != self.phase:
            self.env.close()
            self.env, self.phase = self._make(phase), phase
        self.env.load_state_dict(state["env"])
        self.stack.frames[:] = state["stack"]
        self.credit = float(state["credit"])
        self.returns = [float(value) for value in state["returns"]]
        self._replay_state = state["replay"]

    def save_files(self, previous: Path | None) -> Callable[[Path], None]:
        """Return what writes the replay as it is now; it shares the files of `previous`."""
        saving = self.replay.begin_save(None if previous is None else previous / "replay")
        return lambda folder: saving(folder / "replay")

    def load_files(self, folder: Path) -> None:
        """Read the replay, and begin new episodes where the open ones cannot go on.

        These end as truncated at their last observation, as at a `switch`.

        Raises:
            ConfigError: if new episodes would begin, and ``env.resume`` is exact.
        """
        self.replay.load(folder / "replay", self._replay_state)
        actions = self.replay.actions()
        count = self.spec.num_actions
        if count is not None and actions.size and not 0 <= actions.min() <= actions.max() < count:
            raise DamagedFile(
                f"replay {folder / 'replay'} holds actions from {actions.min()} to "
                f"{actions.max()}: allowed are 0 to {count - 1}; use an older checkpoint"
            )
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
