"""Environments as a user would write them; importable, so that workers can build them too."""

import multiprocessing
import os
import signal
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

PREFIX = "rlplast-tests/"
FAULTS = ("raises", "halts", "leaves", "signals", "unsaved")


class Walk(gymnasium.Env):
    """A random walk in the plane that an action pushes; ends when it has left the unit square."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, actions: str = "box", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        low, high = np.array([[-0.1], [0.0]], np.float32), np.array([[0.1], [0.3]], np.float32)
        box, four = spaces.Box(low, high, dtype=np.float32), spaces.Discrete(4, start=3)
        self.action_space = box if actions == "box" else four
        self.place, self.history = np.zeros(2), list[float]()

    def _obs(self) -> np.ndarray:
        return np.array([self.place, [len(self.history), 1.0]])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.history = self.np_random.uniform(-0.5, 0.5, 2), list[float]()
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

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.history = state["place"], state["history"]


class Still(Walk):
    """Ends by a step limit of its own alone, if it has one."""

    limit = 0

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, len(self.history) == self.limit, info


class SelfTruncating(Still):
    limit = 3


class Blind(Walk):
    """Says that it draws, and takes no mode to draw in."""

    def __init__(self) -> None:
        super().__init__()


class TupleState(Walk):
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
            errors = {"raises": KeyError("wheel"), "halts": GeneratorExit("the wheel\ncame off")}
            if self.fault in errors:
                raise errors[self.fault]
            if self.fault == "leaves":
                os._exit(0)
            if self.fault == "signals":
                run = os.getppid() if multiprocessing.parent_process() else os.getpid()
                for number in (signal.SIGINT, signal.SIGINT):
                    os.kill(run, number)
                    time.sleep(0.5)  # two at once are one
                time.sleep(600)
        return obs, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        if self.fault == "unsaved" and self.history:
            raise KeyError("wheel")
        return super().state_dict()


class Counting(gymnasium.RewardWrapper):
    """A wrapper with a state: doubles the reward of every third step."""

    count = 0

    def reward(self, reward: Any) -> float:
        self.count += 1
        return float(reward) * (1 + (self.count % 3 == 0))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def with_dict() -> gymnasium.Env:
    """A walk with Dict observations, flattened again, and a wrapper that counts."""
    space = spaces.Dict({"walk": Walk().observation_space})
    inside = gymnasium.wrappers.TransformObservation(Walk(), lambda obs: {"walk": obs}, space)
    return Counting(gymnasium.wrappers.FlattenObservation(inside))


def with_statistics() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(Walk())


_AWARE = gymnasium.wrappers.TimeAwareObservation.wrapper_spec(flatten=True, normalize_time=True)
_TABLE: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    **{name: (name, 50, {}) for name in ("Walk", "SelfTruncating", "Blind", "TupleState")},
    "WalkDiscrete": ("Walk", None, {"actions": "discrete"}),
    "Normalised": ("with_statistics", 40, {}),
    "Aware": ("Still", 10, {}),
    "Still": ("Still", 10, {}),
    "Flattened": ("with_dict", 40, {}),
    **{f"Faulty-{fault}": ("Faulty", 9, {"fault": fault}) for fault in FAULTS},
}


def register() -> None:
    """What a user's module does when it is imported."""
    for name, (entry_point, limit, kwargs) in _TABLE.items():
        env_id = f"{PREFIX}{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                f"tests.envs.own_envs:{entry_point}",
                max_episode_steps=limit,
                kwargs=kwargs,
                additional_wrappers=(_AWARE,) if name == "Aware" else (),
            )
