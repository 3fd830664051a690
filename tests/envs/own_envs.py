"""Environments as a user would write them; importable, so that workers can build them too."""

import multiprocessing
import os
import random
import signal
import sys
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

PREFIX = "rlplast-tests/"
FAULTS = ("raises", "exits", "hangs", "signals", "none", "array", "unsaved")


class Forgetful(gymnasium.Env):
    """A random walk in the plane that an action pushes; ends when it has left the unit square.

    It has no state methods.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, actions: str = "box", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        low, high = np.array([[-0.1], [0.0]], np.float32), np.array([[0.1], [0.3]], np.float32)
        self.action_space = (
            spaces.Box(low, high, dtype=np.float32)
            if actions == "box"
            else spaces.Discrete(4, start=3)
        )
        self.place = np.zeros(2)
        self.history: list[float] = []

    def _obs(self) -> np.ndarray:
        return np.array([self.place, [len(self.history), 1.0]])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-0.5, 0.5, 2)
        self.history = []
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        push = action[:, 0] if isinstance(action, np.ndarray) else [0.05 * (action - 4), 0.0]
        self.place = self.place + push + self.np_random.normal(0, 0.05, 2)
        self.history.append(float(self.place.sum()))
        terminated = bool(np.abs(self.place).max() > 1)
        return self._obs(), np.float64(sum(self.history)), terminated, False, {}

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), 7, np.uint8)


class Walk(Forgetful):
    """It has them."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.history = state["place"], state["history"]


class Still(Walk):
    """Never ends."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Careless(Forgetful):
    """Draws from the process's global generators, as it begins and at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.drift = np.random.normal(0, 0.01, 2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = np.random.uniform(-0.5, 0.5, 2)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        import torch  # here, as worker processes need none for the others

        self.place = self.place + np.random.normal(0, 0.01, 2) + random.gauss(0, 0.01) + self.drift
        self.place += torch.rand(2).numpy() * 0.01
        return super().step(action)


class Noisy(gymnasium.RewardWrapper):
    """A wrapper that does."""

    def reward(self, reward: Any) -> float:
        return float(reward) + np.random.normal()


def careless() -> gymnasium.Env:
    return Noisy(Careless())


class Blind(Walk):
    """Says that it draws, and takes no mode to draw in."""

    def __init__(self) -> None:
        super().__init__()


class SelfTruncating(Walk):
    """Keeps a step limit of its own."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, len(self.history) == 3, info


class Liar(Walk):
    """Returns other observations than it says."""

    def _obs(self) -> np.ndarray:
        return np.zeros(3)


class TupleState(Walk):
    """Its state holds what files cannot."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": (1, 2)}


class Faulty(Walk):
    """Does at its third step what `fault` says."""

    def __init__(self, fault: str, render_mode: str | None = None) -> None:
        super().__init__("discrete", render_mode)
        self.fault = fault

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if len(self.history) == 3:
            if self.fault == "raises":
                raise KeyError("wheel")
            if self.fault == "exits":
                sys.exit(3)
            if self.fault == "signals":
                run = os.getppid() if multiprocessing.parent_process() else os.getpid()
                for number in (signal.SIGINT, signal.SIGTERM):
                    os.kill(run, number)
            if self.fault in ("hangs", "signals"):
                time.sleep(600)
            reward = {"none": None, "array": np.ones(2)}.get(self.fault, reward)
        return obs, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        if self.fault == "unsaved" and self.history:
            raise KeyError("wheel")
        return super().state_dict()


class Counting(gymnasium.RewardWrapper):
    """A wrapper with a state: doubles the reward of every third step."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.count = 0

    def reward(self, reward: Any) -> float:
        self.count += 1
        return float(reward) * (1 + (self.count % 3 == 0))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def with_dict() -> gymnasium.Env:
    """A walk with Dict observations, flattened again, and a wrapper that counts."""
    inside = gymnasium.wrappers.TransformObservation(
        Walk(),
        lambda obs: {"walk": obs},
        spaces.Dict({"walk": Walk().observation_space}),
    )
    return Counting(gymnasium.wrappers.FlattenObservation(inside))


def with_stack() -> gymnasium.Env:
    return gymnasium.wrappers.FrameStackObservation(Walk(), 2)


def with_statistics() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(Walk())


_MODULE = "tests.envs.own_envs"
_AWARE = gymnasium.wrappers.TimeAwareObservation.wrapper_spec(flatten=True, normalize_time=True)


def register() -> None:
    """What a user's module does when it is imported."""
    for name, entry_point, kwargs, limit in (
        ("Walk-v0", "Walk", {}, 50),
        ("WalkDiscrete-v0", "Walk", {"actions": "discrete"}, None),
        ("Forgetful-v0", "Forgetful", {}, 50),
        ("SelfTruncating-v0", "SelfTruncating", {}, 50),
        ("Blind-v0", "Blind", {}, 50),
        ("Liar-v0", "Liar", {}, 50),
        ("TupleState-v0", "TupleState", {}, 50),
        ("Careless-v0", "Careless", {}, 20),
        ("Noisy-v0", "careless", {}, 20),
        ("Aware-v0", "Still", {}, 10),
        ("Flattened-v0", "with_dict", {}, 40),
        ("Stacked-v0", "with_stack", {}, 40),
        ("Normalised-v0", "with_statistics", {}, 40),
        *((f"Faulty-{f}-v0", "Faulty", {"fault": f}, 9) for f in FAULTS),
    ):
        if PREFIX + name in gymnasium.registry:
            continue
        wrappers = (_AWARE,) if name.startswith("Aware") else ()
        gymnasium.register(
            PREFIX + name,
            f"{_MODULE}:{entry_point}",
            max_episode_steps=limit,
            kwargs=kwargs,
            additional_wrappers=wrappers,
        )
