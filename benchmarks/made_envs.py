"""Environments that are made up and cost nothing, so that updates are measured.

Their ids are ``gym/benchmarks.made_envs:Numbers-v0`` and ``…:Pictures-v0``.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Made(gymnasium.Env):
    """Observations and rewards that nothing influences."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self._obs(), float(self.np_random.normal()), False, False, {}

    def _obs(self) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Numbers(Made):
    """Of the sizes of HumanoidBench's h1."""

    observation_space = Box(-np.inf, np.inf, (51,), np.float32)
    action_space = Box(-1, 1, (19,), np.float32)

    def _obs(self) -> Any:
        return self.np_random.normal(size=51).astype(np.float32)


class Pictures(Made):
    """Of Atari's size."""

    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Discrete(6)

    def _obs(self) -> Any:
        return self.np_random.integers(0, 256, (84, 84), np.uint8)


for name, made in (("Numbers-v0", Numbers), ("Pictures-v0", Pictures)):
    gymnasium.register(name, f"{__name__}:{made.__name__}", max_episode_steps=1000)
