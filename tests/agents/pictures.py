"""A continuous environment that shows itself in pictures, as somebody else would write it."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["SIDE", "SPOT_ID", "STEERED_ID", "Spot"]

SIDE = 14
SPOT_ID, STEERED_ID = "gym/tests/Spot-v0", "gym/tests/Steered-v0"


class Spot(gymnasium.Env):
    """A bright spot goes where the action says; the reward is larger in the middle."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.place = np.zeros(2)

    def _picture(self) -> np.ndarray:
        found = np.zeros((SIDE, SIDE, 3), np.uint8)
        row, column = np.clip((self.place * SIDE).astype(int), 0, SIDE - 1)
        found[row, column] = 255, 128, 64
        return found

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.np_random.random(2)
        return self._picture(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = np.clip(self.place + 0.1 * action, 0, 1)
        return self._picture(), -float(np.abs(self.place - 0.5).sum()), False, False, {}


gymnasium.register("tests/Spot-v0", Spot, max_episode_steps=25)


class Steered(Spot):
    """The same, with a discrete action for each of four directions."""

    action_space = spaces.Discrete(4)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return super().step(np.array([(0, 1), (1, 0), (0, -1), (-1, 0)][action]))


gymnasium.register("tests/Steered-v0", Steered, max_episode_steps=25)


class Bytes(Spot):
    """The same in six bytes."""

    observation_space = spaces.Box(0, 255, (6,), np.uint8)

    def _picture(self) -> np.ndarray:
        return np.resize((self.place * 255).astype(np.uint8), 6)


gymnasium.register("tests/Bytes-v0", Bytes, max_episode_steps=25)
