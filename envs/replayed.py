"""An open episode as a seed and actions, from which another environment plays it again."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlplast.envs.base import CannotContinue, State

__all__ = ["Episode", "give_generator"]


class Episode:
    """What the environment inside all wrappers was told since its reset, which gets a seed."""

    def __init__(self, env: Any, rng: np.random.Generator, longest: int) -> None:
        """Listen to `env`; `rng` gives seeds, and `longest` is how many actions are kept."""
        self._env, self._reset, self._step, self._rng = env, env.reset, env.step, rng
        self._longest, self._inside = longest, False
        self._seed, self._obs = 0, None
        self._actions: list[Any] | None = []  # None once there are too many
        env.reset, env.step = self.reset, self.step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; if a wrapper gives no seed, with a new one."""
        self._seed = int(self._rng.integers(2**31)) if seed is None else seed
        self._actions = []
        return self._begin(options)

    def _begin(self, options: dict[str, Any] | None = None) -> Any:
        give_generator(self._env, self._seed)
        self._inside = True  # an environment may step itself as it begins
        try:
            found = self._reset(seed=self._seed, options=options)
        finally:
            self._inside = False
        self._obs = found[0]
        return found

    def step(self, action: Any) -> Any:
        """Step the environment."""
        if self._inside:
            return self._step(action)
        if self._actions is not None:
            self._actions.append(np.array(action))
            if len(self._actions) > self._longest:
                self._actions = None
        found = self._step(action)
        self._obs = found[0]
        return found

    def state_dict(self) -> State | None:
        """Return seed, actions and a checksum of where they led; None if there are too many."""
        if self._actions is None:
            return None
        where = _checksum(self._obs)
        return {"seed": self._seed, "actions": np.array(self._actions), "where": where}

    def load_state_dict(self, state: State) -> None:
        """Play an episode again.

        Raises:
            CannotContinue: if it leads elsewhere now.
        """
        self._seed, self._actions = state["seed"], list(state["actions"])
        self._begin()
        for action in self._actions:
            self._obs = self._step(action[()])[0]
        if _checksum(self._obs) != state["where"]:
            raise CannotContinue(
                f"its open episode, played again for {len(self._actions)} steps, leads to another "
                "observation than it did"
            )


def give_generator(env: Any, seed: int) -> None:
    """Give an environment the generator that Gymnasium makes of a seed, before a reset with it.

    Some ignore the seed of a reset, and draw from the generator that they have.
    """
    env.unwrapped.np_random = np.random.default_rng(seed)


def _checksum(obs: Any) -> int:
    found = 0
    for part in _parts(obs):
        found = zlib.crc32(part, found)
    return found


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
