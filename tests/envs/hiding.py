"""Environments that keep what decides their future in one place or another."""

import hashlib
import random
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

PREFIX = "rlplast-hiding/"
MEMORY: dict[str, float] = {"count": 0}
ENDS = ("leaves", "halts", "hangs")


class Plain(gymnasium.Env):
    """Counts its steps and walks at random; hides nothing."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.count = self.np_random.normal(), 0
        self.begin()
        return self.obs(), {}

    def begin(self) -> None:
        """Set up what is hidden."""

    def hidden(self) -> float:
        return 0.0

    def obs(self) -> np.ndarray:
        return np.array([self.place, self.hidden()])

    def step(self, action: int) -> Any:
        self.place += action - 0.5 + 0.1 * self.np_random.normal()
        self.count += 1
        return self.obs(), float(self.place), abs(self.place) > 3, self.count >= 40, {}


class Saved(Plain):
    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "place": np.array(self.place, ">f8")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.place = state["count"], float(state["place"])


class ForgetsCount(Saved):
    """Forgets how many of `length` steps its episode has had; shows whether they are even."""

    def __init__(self, length: int) -> None:
        self.length = length

    def hidden(self) -> float:
        return self.count % 2

    def step(self, action: int) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, self.count == self.length, {}

    def state_dict(self) -> dict[str, Any]:
        return {"count": 0, "place": super().state_dict()["place"]}


class Doubled(gymnasium.ObservationWrapper):
    """A wrapper that holds no state."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.factors, self.names = np.array([2.0, 2.0]), {"of": "factors"}

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return self.factors * observation


def with_doubled() -> gymnasium.Env:
    space = Saved.observation_space
    return gymnasium.wrappers.TransformObservation(Doubled(Saved()), lambda obs: -obs, space)


class Limit(gymnasium.Wrapper):
    """A wrapper whose counter shows later than anyone looks."""

    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        found = self.env.step(action)
        return (*found[:3], found[3] or self.count % 10**6 == 0, found[4])


def with_limit() -> gymnasium.Env:
    return Limit(Saved())


def with_frames() -> gymnasium.Env:
    return gymnasium.wrappers.FrameStackObservation(Saved(), 2)


def with_statistics() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(Saved())


class Forgets(Plain):
    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Unsaved(Saved):
    def state_dict(self) -> dict[str, Any]:
        raise KeyError("wheel")


class CState(Plain):
    def begin(self) -> None:
        self.hash = hashlib.sha256()

    def hidden(self) -> float:
        self.hash.update(b"x")
        return float(self.hash.digest()[0])


class IgnoresSeed(CState):
    """Draws from the generator that it has, whatever the seed of a reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset()


class ReadOnly(Plain):
    """Has a generator of its own under Gymnasium's name."""

    own: Any = None

    @property
    def np_random(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.own

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.own = np.random.default_rng(seed)
        self.place, self.count = self.own.normal(), 0
        return self.obs(), {}


def hides(name: str, hidden: Any, begins_with: Any = dict) -> type:
    """Return an environment that shows `hidden`; an episode begins with some attributes."""
    begin = lambda env: vars(env).update(begins_with())  # noqa: E731
    return type(name, (Plain,), {"hidden": hidden, "begin": begin, "__module__": __name__})


def counted() -> float:
    MEMORY["count"] += 1
    return MEMORY["count"]


def drawn_from_torch(env: Any) -> float:
    import torch  # here, as it takes workers long

    return float(torch.rand(()))


GlobalNumpy = hides("GlobalNumpy", lambda env: float(np.random.random()))
GlobalPython = hides("GlobalPython", lambda env: random.random())
GlobalTorch = hides("GlobalTorch", drawn_from_torch)
# Draws from a global generator, and shows it only later than anyone looks.
GlobalQuiet = hides("GlobalQuiet", lambda env: float(np.random.random() > 2))
Clock = hides("Clock", lambda env: float(time.perf_counter_ns() % 2**40))
# Ignores its seed, and shows it at a reset only.
FreshEntropy = hides(
    "FreshEntropy", lambda env: float(env.rng.normal()), lambda: {"rng": np.random.default_rng()}
)
ModuleMemory = hides("ModuleMemory", lambda env: counted())


class ModuleWeather(Plain):
    """All of its kind have the weather of the newest episode."""

    def begin(self) -> None:
        MEMORY["weather"] = float(self.np_random.normal())

    def hidden(self) -> float:
        return MEMORY["weather"]


class Worn(Plain):
    """Carries something from episode to episode."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def begin(self) -> None:
        self.hash.update(b"x")

    def hidden(self) -> float:
        return float(self.hash.digest()[0])


class Port(Plain):
    """Takes what there is once, as a port of the machine."""

    taken: ClassVar[bool] = False

    def __init__(self) -> None:
        if self.taken:
            raise OSError("address already in use")
        type(self).taken = True

    def close(self) -> None:
        type(self).taken = False


class Refuses(Plain):
    """Refuses to begin before an episode is over."""

    count = 40

    def reset(self, **options: Any) -> Any:
        if self.count < 40:
            raise RuntimeError("the episode\nis not over")
        return super().reset(**options)


class Stop(BaseException):
    """As a framework may end itself."""


class Ends(Plain):
    """Ends at its third step, with `how`."""

    def __init__(self, how: str) -> None:
        self.how = how

    def hidden(self) -> float:
        if self.count < 2:
            return 0.0
        if self.how == "hangs":
            time.sleep(600)
        raise (SystemExit if self.how == "leaves" else Stop)("the wheel\ncame off")


EXACT = (Saved, with_doubled)
REPLAYED = (Plain, CState, IgnoresSeed, ReadOnly, Forgets, Unsaved, with_limit, with_frames)
RESTARTED = (GlobalNumpy, GlobalPython, GlobalTorch, GlobalQuiet, Clock, FreshEntropy, ModuleMemory)
RESTARTED += (ModuleWeather, Worn, Port, Refuses, with_statistics)


def register() -> None:
    entries = {kind.__name__: {} for kind in (*EXACT, *REPLAYED, *RESTARTED, ForgetsCount)}
    for name, kwargs in (entries | {how: {"how": how} for how in ENDS}).items():
        if f"{PREFIX}{name}-v0" not in gymnasium.registry:
            entry_point = f"tests.envs.hiding:{'Ends' if kwargs else name}"
            gymnasium.register(f"{PREFIX}{name}-v0", entry_point, kwargs=kwargs)
