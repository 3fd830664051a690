"""How exactly an environment of somebody else's can be resumed: tried out, not believed.

- `LEVELS`: exact, replayed, restarted.
- `Level`: one of them, and why it is not a better one.
- `find_level`: the best one that an environment passes.
"""

import copy
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlplast.envs.base import State, load_rng_state, rng_state

__all__ = ["LEVELS", "Level", "Resumable", "find_level"]

LEVELS = ("exact", "replayed", "restarted")  # the best first
LIMIT = 5.0  # seconds of a trial, over all levels; what takes longer passes none
STEPS = 100  # of each stretch that is compared
STRETCH = 0.15  # seconds of the first stretch, if that is fewer steps; all have as many
FEWEST = 2  # steps of a stretch
AFTER_RESET = 5  # steps, if a stretch has as many
RESETS = 3  # after a stretch, if it has all `STEPS`

_Step = tuple[bytes, bytes, bool, bool]


class _TooSlow(ValueError):
    """Raised at the end of the time that there is for a trial."""


@dataclass(frozen=True)
class Level:
    """How an environment is resumed.

    Attributes:
        name: of `LEVELS`.
        reason: why it is not a better one; empty if it is the best.
    """

    name: str
    reason: str = ""


class Resumable(Protocol):
    """What is tried out: a simulator that truncates its own episodes too."""

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        ...

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Return the next observation, the reward, terminated and truncated."""
        ...

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a random action."""
        ...

    def state_dict(self) -> State:
        """Return the state; raises where it has none to give."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was taken."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def find_level(build: Callable[[str, np.random.Generator], Resumable]) -> Level:
    """Return the best level at which an environment goes on after a resume as it did before.

    Two environments are built from equal generators. Their first episodes must be equal. Then the
    state of one, in the midst of an episode and after a few more, is put into the other, and back
    into itself; each time the same actions must have the same results, bit for bit, over episodes
    that end, over resets between, and while the other one is played. An environment that moves a
    global generator of NumPy, Python or PyTorch passes nothing. Nor does one that is too slow to be
    compared once within `LIMIT` seconds.

    Args:
        build: returns the environment for a level, drawing from a generator.
    """
    reasons: dict[str, list[str]] = {}  # problem → levels
    began = time.monotonic()
    for name in LEVELS[:-1]:
        with _watched() as moved:
            try:
                problem = _problem(build, name, began + LIMIT)
            # Whatever an environment raises here, a run shows it in its own place.
            except (Exception, SystemExit) as error:
                known = isinstance(error, TypeError | ValueError)
                problem = str(error) if known else repr(error)
        if moved:
            problem = f"it draws from the global generator of {' and '.join(moved)}"
        if not problem:
            return Level(name, _reason_text(reasons))
        reasons.setdefault(problem, []).append(name)
    return Level(LEVELS[-1], _reason_text(reasons))


def _reason_text(reasons: Mapping[str, Sequence[str]]) -> str:
    """Say what keeps an environment from which levels."""
    return "; ".join(f"not {' or '.join(names)}: {why}" for why, names in reasons.items())


def _problem(build: Callable[[str, np.random.Generator], Resumable], level: str, end: float) -> str:
    """Say what differs after a resume at a level; empty if nothing does.

    Raises:
        _TooSlow: at the moment `end`, if it is not known by then.
    """
    rngs = [np.random.default_rng(1) for _ in range(2)]
    envs: list[Resumable] = []
    try:
        for rng in rngs:
            _check_time(end)
            envs.append(build(level, rng))
        starts = [env.reset().tobytes() for env in envs]
        envs[0].state_dict()  # at once, as it may refuse
        count, begun = _play(envs[0], 0, end, resets=False)
        if starts[0] != starts[1] or _play(envs[1], 0, end, count, resets=False)[1] != begun:
            return "two environments from one seed differ"
        return _compared(envs, rngs, 1, count, end) or _compared_again(envs, rngs, count, end)
    finally:
        for env in envs:
            with suppress(Exception):
                env.close()


def _compared_again(
    envs: list[Resumable], rngs: list[np.random.Generator], count: int, end: float
) -> str:
    """Say what differs after another resume; empty if there is no time for it."""
    if time.monotonic() > end - LIMIT / 2:
        return ""
    with suppress(_TooSlow):
        return _compared(envs, rngs, 2, count, end)
    return ""


def _compared(
    envs: list[Resumable], rngs: list[np.random.Generator], number: int, count: int, end: float
) -> str:
    """Say what differs after the state of one of two is put into the other, and into itself."""
    one, other = envs
    _play(one, number, end, count, resets=False)
    state, drawn = one.state_dict(), rng_state(rngs[0])
    _, goes_on = _play(one, 9, end, count)
    _play(other, 10 + number, end, count, resets=False)  # so that it is elsewhere
    for env, rng, beside in ((other, rngs[1], one), (one, rngs[0], other)):
        load_rng_state(rng, drawn)
        env.load_state_dict(state)
        _, again = _play(env, 9, end, count, beside=beside)
        at = [a != b for a, b in zip(goes_on, again, strict=False)]
        if any(at):
            return f"after a resume it differs from step {at.index(True) + 1} on"
    return ""


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise _TooSlow(f"trying it out takes longer than {LIMIT:g} s")


def _play(
    env: Resumable,
    seed: int,
    end: float,
    count: int | None = None,
    resets: bool = True,
    beside: Resumable | None = None,
) -> tuple[int, list[_Step]]:
    """Play on with random actions, and return how many steps, and what happened.

    Args:
        env: what is played.
        seed: of the actions.
        end: moment from which nothing is played.
        count: how many steps; else as many as `STRETCH` allows.
        beside: begins an episode and takes a few steps meanwhile, of which `env` must not notice.
        resets: whether new episodes of a few steps follow, which must not depend on the past.

    Raises:
        _TooSlow: if `end` comes before.
    """
    rng, found = np.random.default_rng(seed), list[_Step]()
    short = time.monotonic() + STRETCH

    def reset() -> None:
        _check_time(end)
        found.append((env.reset().tobytes(), b"", False, False))

    def step() -> None:
        _check_time(end)
        obs, reward, terminated, truncated = env.step(env.draw(rng))
        number = np.float64(reward).tobytes()  # so that a NaN is equal to itself
        found.append((obs.tobytes(), number, terminated, truncated))
        if terminated or truncated:
            reset()

    done, most = 0, STEPS if count is None else count
    while done < most and (count is not None or done < FEWEST or time.monotonic() < short):
        step()
        done += 1
        if beside is not None and done <= min(most, AFTER_RESET):
            _disturb(beside, done, rng)
    for _ in range((RESETS if done == STEPS else 1) if resets else 0):
        reset()
        for _ in range(min(done, AFTER_RESET)):
            step()
    return done, found


def _disturb(env: Resumable, number: int, rng: np.random.Generator) -> None:
    """Begin an episode, then take a step; actions are drawn from a copy of a generator."""
    if number == 1:
        env.reset()
        return
    _, _, terminated, truncated = env.step(env.draw(copy.deepcopy(rng)))
    if terminated or truncated:
        env.reset()


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Put the global generators back after a block, and name those that it moved."""
    torch = sys.modules.get("torch")  # not imported for this
    numpy: Any = np.random.get_state()
    python = random.getstate()
    own = None if torch is None else torch.get_rng_state()
    moved: list[str] = []
    try:
        yield moved
    finally:
        now: Any = np.random.get_state()
        if now[2] != numpy[2] or not np.array_equal(now[1], numpy[1]):
            moved.append("NumPy")
        if random.getstate() != python:
            moved.append("Python")
        np.random.set_state(numpy)
        random.setstate(python)
        if torch is not None:
            if not torch.equal(own, torch.get_rng_state()):
                moved.append("PyTorch")
            torch.set_rng_state(own)
