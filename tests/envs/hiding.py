"""Environments that keep something where a snapshot does not look, each in its own way."""

import array
import collections
import functools
import hashlib
import io
import itertools
import os
import random
import time
import weakref
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

PREFIX = "rlplast-hiding/"
MEMORY: dict[str, float] = {"count": 0}
GENERATOR = np.random.default_rng(0)
LEGACY = np.random.RandomState(0)
NOTES: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


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


def hides(name: str, hidden: Any, begins_with: Any = dict) -> type:
    """Return an environment that shows `hidden`; an episode begins with some attributes."""
    begin = lambda env: vars(env).update(begins_with())  # noqa: E731
    return type(name, (Plain,), {"hidden": hidden, "begin": begin, "__module__": __name__})


GlobalNumpy = hides("GlobalNumpy", lambda env: float(np.random.random()))
GlobalPython = hides("GlobalPython", lambda env: random.random())
GlobalTorch = hides("GlobalTorch", lambda env: float(torch.rand(())))
ModuleGenerator = hides("ModuleGenerator", lambda env: float(GENERATOR.normal()))
ModuleLegacy = hides("ModuleLegacy", lambda env: float(LEGACY.normal()))
Clock = hides("Clock", lambda env: float(time.perf_counter_ns() % 2**40))
# Ignores its seed, and shows it at a reset only.
FreshEntropy = hides(
    "FreshEntropy", lambda env: float(env.rng.normal()), lambda: {"rng": np.random.default_rng()}
)
Iterator = hides(
    "Iterator", lambda env: float(next(env.numbers)), lambda: {"numbers": itertools.count()}
)
PythonGenerator = hides(
    "PythonGenerator",
    lambda env: float(next(env.numbers)),
    lambda: {"numbers": (i * i for i in range(10**6))},
)
Stream = hides(
    "Stream",
    lambda env: float(env.stream.read(1)[0]),
    lambda: {"stream": io.BytesIO(bytes(range(256)) * 9)},
)


class ModuleMemory(Plain):
    def hidden(self) -> float:
        MEMORY["count"] += 1
        return MEMORY["count"]


class ModuleWeather(Plain):
    """All of its kind have the weather of the newest episode."""

    def begin(self) -> None:
        MEMORY["weather"] = float(self.np_random.normal())

    def hidden(self) -> float:
        return MEMORY["weather"]


class ClassCounter(Plain):
    steps: ClassVar[int] = 0

    def hidden(self) -> float:
        type(self).steps += 1
        return float(self.steps)


class DefaultArgument(Plain):
    def hidden(self, memory: list[int] = []) -> float:  # noqa: B006
        memory.append(1)
        return float(len(memory))


class FunctionAttribute(Plain):
    def hidden(self) -> float:
        Plain.hidden.count = getattr(Plain.hidden, "count", 0) + 1
        return float(Plain.hidden.count)


class Cache(Plain):
    def hidden(self) -> float:
        return _cached(self.count)


@functools.cache
def _cached(number: int) -> float:
    MEMORY["count"] += 1
    return MEMORY["count"] + number


class Late(Plain):
    """Shows what it hides after more steps than anyone looks at."""

    def hidden(self) -> float:
        MEMORY["count"] += 1
        return MEMORY["count"] if self.count > 10**6 else 0.0


class Notes(Plain):
    def hidden(self) -> float:
        NOTES[self] = NOTES.get(self, 0) + 1
        return float(NOTES[self])


class File(Plain):
    path = f"/tmp/rlplast-hiding-{os.getpid()}"

    def hidden(self) -> float:
        with open(self.path, "a") as file:
            file.write("x")
        return float(os.path.getsize(self.path))


class Environ(Plain):
    def hidden(self) -> float:
        os.environ["RLPLAST_HIDING"] = str(int(os.environ.get("RLPLAST_HIDING", "0")) + 1)
        return float(os.environ["RLPLAST_HIDING"])


class Identity(Plain):
    def __init__(self) -> None:
        self.own = object()

    def hidden(self) -> float:
        return float(id(self.own) % 2**40)


class CState(Plain):
    def begin(self) -> None:
        self.hash = hashlib.sha256()

    def hidden(self) -> float:
        self.hash.update(b"x")
        return float(self.hash.digest()[0])


class Worn(Plain):
    """Carries what Python does not show from episode to episode."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def begin(self) -> None:
        self.hash.update(b"x")

    def hidden(self) -> float:
        return float(self.hash.digest()[0])


class CArray(Plain):
    def begin(self) -> None:
        self.numbers = array.array("d", [0.0])

    def hidden(self) -> float:
        self.numbers[0] += 1
        return self.numbers[0]


class Views(Plain):
    def begin(self) -> None:
        self.board = np.zeros((3, 3))
        self.row = self.board[1]

    def hidden(self) -> float:
        self.row += 1
        return float(self.board.sum())


class Rows(list[float]):
    """A list with more than a list has."""

    turns = 0.0


class Subclass(Plain):
    def begin(self) -> None:
        self.rows = Rows([0.0])

    def hidden(self) -> float:
        self.rows.turns += 1
        self.rows.append(self.rows.turns)
        return sum(self.rows)


class Reduced:
    """Says of itself that it has no state."""

    count = 0.0

    def __getstate__(self) -> None:
        return None


class OwnPickling(Plain):
    def begin(self) -> None:
        self.kept = Reduced()

    def hidden(self) -> float:
        self.kept.count += 1
        return self.kept.count


class Forgets(Plain):
    """Has the two methods, and forgets its place."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Counts(CState):
    """Counts over its episodes, and shows it only later than anyone looks."""

    total = 0

    def hidden(self) -> float:
        self.total += 1
        return super().hidden() + (self.total > 10**6)


class Harder(gymnasium.Wrapper):
    """Tells its environment at a reset how hard the episode is."""

    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.count += 1
        return self.env.reset(seed=seed, options={"bonus": np.float64(self.count)})


class Bonus(CState):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.bonus = (options or {}).get("bonus", 0.0)
        return super().reset(seed=seed)

    def hidden(self) -> float:
        return super().hidden() + self.bonus


def with_options() -> gymnasium.Env:
    return Harder(Bonus())


class Macro(CState):
    """Begins and steps itself again, more than once."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed)
        return self.reset() if self.place < -1 else found

    def step(self, action: int) -> Any:
        if action:
            super().step(1)
            return self.step(0)
        return super().step(0)


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


class Pairs(CState):
    """Takes actions of several parts."""

    def step(self, action: Any) -> Any:
        number, _ = action.values() if isinstance(action, dict) else action
        return super().step(number)


class Paired(gymnasium.ActionWrapper):
    def __init__(self, env: gymnasium.Env, kind: type) -> None:
        super().__init__(env)
        self.kind = kind

    def action(self, action: int) -> Any:
        parts = (int(action), np.array([0.5, action]))
        return parts if self.kind is tuple else dict(zip("ab", parts, strict=True))


def with_tuples() -> gymnasium.Env:
    return Paired(Pairs(), tuple)


def with_dicts() -> gymnasium.Env:
    return Paired(Pairs(), dict)


class Lately(Plain):
    """Gets, once it is `late`, what Python does not show."""

    late: ClassVar[bool] = False

    def hidden(self) -> float:
        if self.late:
            self.hash = hashlib.sha256()
        return 0.0


class Spawns(Plain):
    """Has the two methods, and draws from a child of its generator."""

    def hidden(self) -> float:
        return float(self.np_random.spawn(1)[0].normal())

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "place": np.array(self.place, ">f8")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.place = state["count"], float(state["place"])


class Queue(Plain):
    """Hides nothing: all of it is Python's."""

    def begin(self) -> None:
        self.queue = collections.deque([0.0], maxlen=3)
        self.rng, self.old = np.random.default_rng(3), random.Random(4)
        self.names: dict[Any, Any] = {(1, "a"): [self.queue], None: {2, 3}}
        self.count_up = self.counter()

    def counter(self) -> Any:
        total = [0]

        def count_up() -> float:
            total[0] += 1
            return float(total[0])

        return count_up

    def hidden(self) -> float:
        self.queue.append(self.rng.normal() + self.old.random())
        return sum(self.names[1, "a"][0]) + self.count_up()


EXACT = (Plain, Queue, ReadOnly, Lately, Spawns)
REPLAYED = (
    CState,
    Iterator,
    PythonGenerator,
    Stream,
    CArray,
    Views,
    Subclass,
    OwnPickling,
    Forgets,
    Macro,
    with_options,
)
RESTARTED = (
    GlobalNumpy,
    GlobalPython,
    GlobalTorch,
    ModuleMemory,
    ModuleWeather,
    ModuleGenerator,
    ModuleLegacy,
    ClassCounter,
    DefaultArgument,
    FunctionAttribute,
    Notes,
    Clock,
    File,
    Environ,
    Identity,
    FreshEntropy,
    Worn,
    Counts,
    with_tuples,
    with_dicts,
)
SLIPS_THROUGH = (Cache, Late)


def register() -> None:
    for kind in (*EXACT, *REPLAYED, *RESTARTED, *SLIPS_THROUGH):
        name = f"{PREFIX}{kind.__name__}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(name, f"tests.envs.hiding:{kind.__name__}")
