"""How an environment of somebody else's goes on after an interruption: one rule, tried out once.

- exact: its state is put back, by its own ``state_dict()`` and ``load_state_dict(state)`` and those
  of its wrappers; a wrapper that has neither must hold no state.
- replayed: a new one plays the open episode's actions again.
- restarted: a new episode begins.

A trial counts steps, never time, so that its result is the same on every machine.
"""

import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.envs.base import Env, State
from rlplast.envs.vector import EnvGroup
from rlplast.envs.workers import WorkerGroups

__all__ = ["LEVELS", "Level", "find_level"]

LEVELS = ("exact", "replayed", "restarted")  # the best first
SAME = 5  # steps of two that have equal seeds
AWAY = (50, 57, 63)  # steps before a state is taken: a counter differs in each, also by halves
ON = 20  # steps from there
AFTER_RESET = 5

_LACKS = "has no state_dict() and load_state_dict(state)"
_RUNS_DIFFER = "so runs of one seed differ"
_ERRORS = (ValueError, ImportError, RuntimeError)  # that a group of environments raises
_Step = tuple[bytes, ...]
_Trial = Generator[None, None, str]  # between two steps it yields; at last it says what differs


@dataclass(frozen=True)
class Level:
    """How an environment goes on after an interruption.

    Attributes:
        name: of `LEVELS`.
        reason: why it is not a better one; empty if it is the best.
    """

    name: str
    reason: str = ""


def find_level(
    make_env: Callable[[np.random.Generator], Env], worker: bool, timeout: float
) -> Level:
    """Return the best level at which an environment goes on after a resume as it did before.

    Two environments are built from equal generators, and must do the same for some steps. Then the
    state of one, in the midst of an episode that is not its first, is put into a new one. The same
    actions must have the same results, bit for bit, over another reset too, and while other ones
    are played. One that moves a global generator of NumPy, Python or PyTorch passes nothing. One
    that raises an error is restarted: a run shows the error in its own place.

    With `worker` a worker process does it, which may take `timeout` seconds for a step.

    Raises:
        EnvFailed: for what is no error of Python's, such as SystemExit.
        WorkerDied: for a worker that ends, or does not answer.
    """
    if not worker:
        trial = _Tried(make_env)
        while (level := trial.advance()) is None:
            pass
        return level
    with closing(WorkerGroups(_Tried, [(make_env,)], timeout)) as workers:
        while (level := workers.call("advance", [()])[0]) is None:
            pass
    return level


class _Tried:
    """A trial that is done step by step, so that each of them has the whole time limit."""

    def __init__(self, make_env: Callable[[np.random.Generator], Env]) -> None:
        self._trial = _tried(make_env)

    def advance(self) -> Level | None:
        """Go on by a step; return the level once it is known."""
        try:
            next(self._trial)
        except StopIteration as end:
            return end.value
        return None


def _tried(make_env: Callable[[np.random.Generator], Env]) -> Generator[None, None, Level]:
    groups: list[EnvGroup] = []
    problems: dict[str, str] = dict.fromkeys(LEVELS[:-1], "")
    with _watched() as moved:
        try:
            yield from _compared(make_env, groups, problems)
        except _ERRORS as error:
            problems = dict.fromkeys(problems, _told(error))
        finally:
            for group in groups:
                group.close()
    if moved:
        why = f"it draws from the global generator of {' and '.join(moved)}, {_RUNS_DIFFER}"
        problems = dict.fromkeys(problems, why)
    passed = [level for level, problem in problems.items() if not problem]
    best = passed[0] if passed else LEVELS[-1]
    reasons: dict[str, list[str]] = {}
    for level in LEVELS[: LEVELS.index(best)]:
        reasons.setdefault(problems[level], []).append(level)
    text = (f"not {' or '.join(names)}: {why}" for why, names in reasons.items())
    return Level(best, "; ".join(text))


def _told(error: BaseException) -> str:
    """Return what an error of an environment says; raise it if it is to end the program."""
    if isinstance(error.__cause__, Exception | None):
        return " ".join(str(error).split())
    raise error


def _compared(
    make_env: Callable[[np.random.Generator], Env], groups: list[EnvGroup], problems: dict[str, str]
) -> Generator[None, None, None]:
    """Try two environments, which `groups` gets; note in `problems` what keeps them from levels."""
    groups.append(EnvGroup(make_env, [np.random.default_rng(1)]))
    yield
    first = [groups[0].reset().tobytes()]
    yield
    try:
        groups.append(EnvGroup(make_env, [np.random.default_rng(1)], 1))
        yield
        first.append(groups[1].reset().tobytes())
    except _ERRORS as error:
        why = f"it cannot be there twice ({_told(error)})"
        why += ", as evaluations need (evaluate.every: null)"
        problems.update(dict.fromkeys(problems, why))
        return
    if any(learned for group in groups for learned in group.learned()):
        problems["replayed"] = "running statistics of its wrappers go on over episodes"
    rngs = [np.random.default_rng(0) for _ in range(2)]
    for number in range(SAME + 1):
        if first[0] != first[1]:
            why = f"with equal seeds and actions it differs from step {number} on, {_RUNS_DIFFER}"
            problems.update(dict.fromkeys(problems, why))
            return
        first = [b"".join(_step(group, rng)) for group, rng in zip(groups, rngs, strict=True)]
        yield
    for level in [name for name, problem in problems.items() if not problem]:
        try:
            problems[level] = yield from _resumed(level, make_env, groups)
        except _ERRORS as error:
            problems[level] = _told(error)
        if not problems[level]:
            return


def _resumed(
    level: str, make_env: Callable[[np.random.Generator], Env], groups: list[EnvGroup]
) -> _Trial:
    """Say what differs where the state of one is put into a new one; empty if nothing does."""
    for number, away in enumerate(AWAY):
        one, other = groups[0], groups[-1]
        one.reset()  # so that the episode is not its first
        yield from _play(one, away, 3 * number)
        (state,) = one.get_states(level)
        if not state["running"]:
            return state["untold"]
        goes_on = yield from _play(one, ON, 3 * number + 1, beside=other)
        # None is closed meanwhile: some close what others of their kind need.
        groups.append(new := EnvGroup(make_env, [np.random.default_rng(2)], len(groups)))
        yield
        new.reset()  # as a run that is resumed does
        (why,) = new.set_states([state])
        if why is not None:
            return why
        if why := _unlike(state, *new.get_states(level)):
            return why
        yield
        again = yield from _play(new, ON, 3 * number + 1, beside=one)
        at = [a != b for a, b in zip(goes_on, again, strict=False)]
        if any(at):
            return f"after a resume it differs from step {at.index(True) + 1} on"
    return ""


def _unlike(state: State, again: State) -> str:
    """Say which wrapper is in another state than it was saved in; empty if none is known to be."""
    both = (one.get("simulator", {}).get("others", []) for one in (state, again))
    for (name, before), (_, now) in zip(*both, strict=True):
        if before is None or before != now:
            return f"its wrapper {name} holds a state, and {_LACKS}"
    return ""


def _play(
    group: EnvGroup, count: int, seed: int, beside: EnvGroup | None = None
) -> Generator[None, None, list[_Step]]:
    """Play `count` random steps on, and return what happened.

    `beside` begins an episode and is played meanwhile, of which `group` must not notice. Then a
    new episode of `group` follows, which must not depend on those before.
    """
    rng, steps = np.random.default_rng(seed), list[_Step]()
    other_rng = np.random.default_rng(seed + 1)
    if beside is not None:
        beside.reset()
    for number in range(count + (AFTER_RESET if beside is not None else 0)):
        if number == count:
            steps.append((group.reset().tobytes(),))
        steps.append(_step(group, rng))
        yield
        if beside is not None:
            _step(beside, other_rng)
            yield
    return steps


def _step(group: EnvGroup, rng: np.random.Generator) -> _Step:
    spec = group.spec
    if spec.num_actions is None:
        actions = rng.uniform(-1, 1, (1, spec.action_dim or 1)).astype(np.float32)
    else:
        actions = [int(rng.integers(spec.num_actions))]
    step = group.step(actions)
    numbers = np.array([step.reward, step.terminated, step.truncated], np.float64)  # NaN is itself
    return step.obs.tobytes(), *(o.tobytes() for o in step.finals.values()), numbers.tobytes()


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Put the global generators back after a block, and name those that it moved."""
    torch = sys.modules.get("torch")  # not imported for this
    numpy: Any = np.random.get_state()
    python = random.getstate()
    torch_state = None if torch is None else torch.get_rng_state()
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
            if not torch.equal(torch_state, torch.get_rng_state()):
                moved.append("PyTorch")
            torch.set_rng_state(torch_state)
