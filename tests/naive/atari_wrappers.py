"""Slow twin of FIRE's Atari wrappers, from their description: frames in lists, OpenCV, plain ALE.

From the game outwards: four frames a step, the maximum of the last two in colour, the reward's
sign, an action that is repeated for a whole step, the picture shrunk to 84x84 and then turned grey,
and the last four pictures. Before an episode's fourth picture its first one stands in.
"""

from typing import Any

import cv2
import numpy as np

SKIP, SIZE, STACK = 4, 84, 4


class FireWrappers:
    """One game.

    Args:
        ale: with the game loaded, and without sticky actions of its own.
        sticky: probability that a step repeats the action of the step before.
        rng: for one draw a step.
    """

    def __init__(self, ale: Any, sticky: float, rng: np.random.Generator) -> None:
        self.ale, self.sticky, self.rng = ale, sticky, rng
        self.actions = ale.getMinimalActionSet()
        self.last = 0  # the first action is to do nothing
        self.pictures: list[np.ndarray] = []

    def reset(self) -> np.ndarray:
        self.ale.reset_game()
        self.last = 0
        self.pictures = [self.picture([self.ale.getScreenRGB()])]
        return self.stack()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Return the stack, the reward's sign and whether the game is over."""
        if self.rng.random() >= self.sticky:
            self.last = action
        screens, points = [], 0.0
        while len(screens) < SKIP and not self.ale.game_over():
            points += self.ale.act(self.actions[self.last])
            screens.append(self.ale.getScreenRGB())
        self.pictures.append(self.picture(screens[-2:]))
        return self.stack(), float(np.sign(points)), self.ale.game_over()

    def picture(self, screens: list[np.ndarray]) -> np.ndarray:
        brightest = np.max(screens, axis=0)
        small = cv2.resize(brightest, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        return cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)

    def stack(self) -> np.ndarray:
        return np.stack(([self.pictures[0]] * STACK + self.pictures[1:])[-STACK:])
