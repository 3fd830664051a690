"""Environments and replay of an off-policy agent, and the updates it owes for them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlplast import envs
from rlplast.agents.device_frames import fits
from rlplast.agents.environments import Environments
from rlplast.agents.off_policy_config import OffPolicyConfig
from rlplast.agents.replay import Replay
from rlplast.agents.sampling import sampling_of
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.rng import Streams

__all__ = ["Experience"]


class Experience(Environments):
    """Environments, replay, and the updates owed for the transitions stored.

    `clip_rewards` stores the sign of rewards only.

    Raises:
        ConfigError: if the replay is too small ever to give a batch.
    """

    def __init__(
        self,
        config: OffPolicyConfig,
        tasks: Tasks,
        streams: Streams,
        device: torch.device,
        clip_rewards: bool,
    ) -> None:
        agent, n, spec = config.agent, config.env.num_envs, tasks.spec
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
        self.plan, self.credit = config.update_plan(), 0.0
        self.clip_rewards = clip_rewards
        self.replay = Replay(
            capacity=agent.buffer_size,
            num_envs=n,
            spec=spec,
            n_step=longest,
            gamma=agent.gamma,
            batch_size=agent.batch_size,
            rng=streams.numpy("replay"),
            device=device,
            sampling=sampling_of(agent.sampling),
            frames_on_device=_frames_on_device(agent, spec, device),
        )
        super().__init__(config, tasks, streams)

    def switch(self, phase: int) -> None:
        """Go on in a phase's task.

        Running episodes end as truncated at their last observation: no n-step window reaches into
        another task.
        """
        if self.tasks.sequence.switch.replay == "clear":
            self.replay.clear()
        super().switch(phase)

    def _begin(self, when: str) -> np.ndarray:
        obs = super()._begin(when)
        self.replay.start(obs)
        return obs

    def owed(self) -> int:
        """Return how many updates are due before the next environment step."""
        return int(self.credit + 1e-9)

    def store(self, actions: np.ndarray, step: envs.VectorStep, clock: Clock) -> Clock:
        """Store the transitions of a step, and return the new clock."""
        self.replay.add(
            actions,
            np.sign(step.reward) if self.clip_rewards else step.reward,
            step.terminated,
            step.truncated,
            step.obs,
            step.obs_final,
        )
        after = self.go_on(step, clock)
        self.credit += self.plan.owed(clock.env_steps, after.env_steps)
        return after

    def state_dict(self) -> dict[str, Any]:
        """Return environments, frame stacks and counters; the replay's bulk is in files."""
        return super().state_dict() | {"replay": self.replay.state_dict(), "credit": self.credit}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay follows in `load_files`."""
        super().load_state_dict(state)
        self.credit = float(state["credit"])
        self._replay_state = state["replay"]

    def load_files(self, folder: Path) -> None:
        """Read the replay, and begin new episodes where the open ones cannot go on.

        These end as truncated at their last observation, as at a `switch`.

        Raises:
            ConfigError: if new episodes would begin, and ``env.resume`` is exact.
            DamagedFile: if the replay holds actions that the environment has not.
        """
        self.replay.load(folder / "replay", self._replay_state, self.streams.parted)
        actions = self.replay.actions()
        count = self.spec.num_actions
        if count is not None and actions.size and not 0 <= actions.min() <= actions.max() < count:
            raise DamagedFile(
                f"replay {folder / 'replay'} holds actions from {actions.min()} to "
                f"{actions.max()}: allowed are 0 to {count - 1}; use an older checkpoint"
            )
        super().load_files(folder)


def _frames_on_device(agent: Any, spec: envs.EnvSpec, device: torch.device) -> bool:
    """Say whether the device has the frames too: ``agent.replay`` asks for it, or they fit."""
    if agent.replay == "device" and device.type != "cuda":
        raise ConfigError(
            f"agent.replay = 'device' on device {device}: allowed here are auto and host"
        )
    row = math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
    worthwhile = len(spec.obs_shape) > 1 and fits(agent.buffer_size * row, device)
    return agent.replay == "device" or (agent.replay == "auto" and worthwhile)
