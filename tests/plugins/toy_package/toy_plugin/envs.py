"""A walk on a line: as a family of rlplast, and in Gymnasium's registry."""

import gymnasium
import numpy as np

from rlplast import envs
from rlplast.envs.options import count


class Walk(envs.Simulator):
    """Starts near 0, goes up or down; pays its place."""

    def __init__(self, rng, up=1):
        self.rng, self.up, self.place = rng, up, 0.0

    def reset(self):
        self.place = float(self.rng.normal())
        return self._obs()

    def step(self, action):
        self.place += self.up * action - 0.5 + float(self.rng.normal()) / 10
        return self._obs(), self.place, abs(self.place) > 5, False

    def _obs(self):
        return np.array([self.place, 1], np.float32)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


SPEC = envs.EnvSpec("toy/walk", obs_shape=(2,), num_actions=2, max_episode_steps=15)
envs.register(SPEC, Walk, summary="a walk on a line", source="an example", options={"up": count(1)})


class GymWalk(gymnasium.Env):
    """The same in Gymnasium's words."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.walk = Walk(None)

    def reset(self, *, seed=None, options=None):
        self.walk.rng = self.np_random
        return self.walk.reset(), {}

    def step(self, action):
        return *self.walk.step(int(action)), {}

    def state_dict(self):
        return self.walk.state_dict()

    def load_state_dict(self, state):
        self.walk.rng = self.np_random
        self.walk.load_state_dict(state)


gymnasium.register("ToyWalk-v0", "toy_plugin.envs:GymWalk", max_episode_steps=15)
