"""An open episode as a seed and actions, from which another environment plays it again."""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from rlplast.envs.base import CannotContinue, State, plain
from rlplast.envs.snapshot import checksum

__all__ = ["Episode", "give_generator"]


class Episode:
    """What the environment inside all wrappers was given since its reset, which gets a seed."""

    def __init__(self, env: Any, rng: np.random.Generator, longest: int) -> None:
        """Listen to `env`; `rng` gives seeds, and `longest` is how many actions are kept."""
        self._env, self._reset, self._step, self._rng = env, env.reset, env.step, rng
        self._longest, self._inside = longest, False  # an environment may reset and step itself
        self._seed, self._obs = 0, None
        self._options: Any = None
        self._actions: list[Any] = []
        self._untold = ""  # why the open episode cannot be played again
        env.reset, env.step = self.reset, self.step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; if a wrapper gives no seed, with a new one."""
        if self._inside:
            return self._reset(seed=seed, options=options)
        self._seed = int(self._rng.integers(2**31)) if seed is None else seed
        self._actions, self._untold = [], ""
        try:
            self._options = plain(options)
        except TypeError as error:
            self._untold = f"the options of its reset: {error}"
        return self._begin(options)

    def _begin(self, options: Any) -> Any:
        give_generator(self._env, self._seed)
        return self._heard(self._reset, seed=self._seed, options=options)

    def _heard(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._inside = True
        try:
            found = method(*arguments, **named)
        finally:
            self._inside = False
        self._obs = found[0]
        return found

    def step(self, action: Any) -> Any:
        """Step the environment."""
        if self._inside:
            return self._step(action)
        if len(self._actions) < self._longest:
            self._actions.append(copy.deepcopy(action))
        else:
            self._untold = f"its episode has more than longest_replay = {self._longest} steps"
        return self._heard(self._step, action)

    def state_dict(self) -> State:
        """Return seed, options, actions and checksums of where they led.

        Raises:
            CannotContinue: if there are too many, or they are not of one shape and numbers.
        """
        if self._untold:
            raise CannotContinue(self._untold)
        try:
            actions = plain(np.array(self._actions))
        except (TypeError, ValueError) as error:
            raise CannotContinue(f"the actions inside its wrappers: {error}") from error
        return {
            "seed": self._seed,
            "options": self._options,
            "actions": actions,
            "where": self._where(),
            "holds": self._holds(),
        }

    def _holds(self) -> dict[str, int]:
        """Return checksums of its numbers and arrays; texts may be names of files."""
        held = vars(self._env).items()
        return {name: checksum({name: v}) for name, v in held if not isinstance(v, str)}

    def _where(self) -> int:
        found = 0
        for part in _parts(self._obs):
            found = zlib.crc32(part, found)
        return found

    def load_state_dict(self, state: State) -> None:
        """Play an episode again.

        Raises:
            CannotContinue: if it leads elsewhere now, or the environment also depends on the
                episodes before.
        """
        self._seed, self._options, self._untold = state["seed"], state["options"], ""
        self._actions = list(state["actions"])
        self._begin(plain(self._options))
        for action in self._actions:
            self._heard(self._step, action[()])
        again = f"its open episode, played again for {len(self._actions)} steps, leads to"
        if self._where() != state["where"]:
            raise CannotContinue(f"{again} another observation than it did")
        before, now = state["holds"], self._holds()
        for name in (before | now).keys():
            if before.get(name, 0) != now.get(name, 0):
                raise CannotContinue(
                    f"{again} another {type(self._env).__name__}.{name} than it did: it may "
                    "depend on the episodes before"
                )


def give_generator(env: Any, seed: int) -> None:
    """Give an environment the generator that Gymnasium makes of a seed, before a reset with it.

    Some ignore the seed of a reset, and draw from the generator that they have.
    """
    with suppress(AttributeError):  # of one that shows its own, read only
        env.unwrapped.np_random = np.random.default_rng(seed)


def _parts(obs: Any) -> Iterator[bytes]:
    """Yield the bytes of an observation of any space."""
    if isinstance(obs, Mapping):
        for key in obs:
            yield from _parts(obs[key])
    elif isinstance(obs, list | tuple):
        for item in obs:
            yield from _parts(item)
    elif (array := np.asarray(obs)).dtype != object:  # whose bytes are addresses
        yield array.tobytes()
