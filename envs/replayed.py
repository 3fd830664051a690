"""Environments that note their open episode, so that it can be played again."""

import struct
import zlib
from typing import Any

import numpy as np

from rlplast.envs.base import (
    CannotContinue,
    Env,
    EnvSpec,
    Simulator,
    State,
    load_rng_state,
    rng_state,
    said,
)

__all__ = ["RecordedEnv"]


class RecordedEnv(Env):
    """An `Env` that notes its open episode: its generator's state at the reset, and actions.

    `longest` is how many actions are kept.
    """

    def __init__(
        self, spec: EnvSpec, simulator: Simulator, rng: np.random.Generator, longest: int
    ) -> None:
        super().__init__(spec, simulator, rng)
        self._longest = longest
        self._start: State = {}
        self._actions: list[Any] = []
        self._checksum = 0  # of all that the episode has shown

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        self._start, self._actions, self._checksum = rng_state(self._rng), [], 0
        obs = super().reset()
        self._note(obs)
        return obs

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Return the next observation, the unclipped reward, terminated and truncated."""
        if len(self._actions) <= self._longest:  # one more says that they are too many
            self._actions.append(action if isinstance(action, int) else np.array(action))
        result = super().step(action)
        obs, reward, terminated, truncated = result
        self._note(obs, struct.pack("d??", reward, terminated, truncated))
        return result

    def _note(self, obs: np.ndarray, rest: bytes = b"") -> None:
        self._checksum = zlib.crc32(rest, zlib.crc32(obs.tobytes(), self._checksum))

    def state_dict(self, level: str = "exact") -> State:
        """Return the state of a `level` of `LEVELS`: its own, its open episode, or nothing."""
        if level == "exact":
            return super().state_dict()
        untold, episode = "", None
        if level == "replayed" and len(self._actions) > self._longest:
            untold = f"its episode has more than longest_replay = {self._longest} steps"
        elif level == "replayed":
            actions = np.array(self._actions)
            episode = {"start": self._start, "actions": actions, "checksum": self._checksum}
        return {
            "id": self.spec.id,
            "running": episode is not None,
            "rng": rng_state(self._rng),
            "episode": episode,
            "untold": untold,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was taken, whatever level it is of.

        Raises:
            ValueError: when the state belongs to another environment.
            CannotContinue: when its episode, played again, goes otherwise, or a state does not fit.
        """
        if "episode" not in state:
            super().load_state_dict(state)
            return
        if state["id"] != self.spec.id:
            raise ValueError(f"a state of env '{state['id']}' cannot continue '{self.spec.id}'")
        if state["running"]:
            self._play(state["episode"])
        load_rng_state(self._rng, state["rng"])

    def _play(self, episode: State) -> None:
        load_rng_state(self._rng, episode["start"])
        again = f"its open episode, played again for {len(episode['actions'])} steps,"
        try:
            self.reset()
            for action in episode["actions"]:
                self.step(action)
        except KeyboardInterrupt:
            raise  # a person's
        except BaseException as error:  # whatever an environment raises
            raise CannotContinue(f"{again} raised {said(error)}") from error
        if self._checksum != episode["checksum"]:
            raise CannotContinue(f"{again} went otherwise than it did")
