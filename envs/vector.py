"""Several environments stepped together, here or in worker processes, with exact state.

An episode that ends restarts within the same step (gymnasium's SAME_STEP mode), so no transition
is stored whose action is ignored. The observation it ended with is returned too, because a
truncated episode still bootstraps from it. Gymnasium's SyncVectorEnv and AsyncVectorEnv are not
used: they cannot save and restore their environments.
"""

import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rlplast.envs.base import (
    CannotContinue,
    Env,
    EnvFailed,
    EnvSpec,
    MissingPackage,
    NotFinite,
    State,
    checked_actions,
    rng_state,
    said,
)
from rlplast.envs.workers import TIMEOUT, WorkerGroups

__all__ = ["EnvGroup", "GroupStep", "VectorEnv", "VectorStep"]

MakeEnv = Callable[[np.random.Generator], Env]


@dataclass(frozen=True)
class VectorStep:
    """One step of N environments.

    Attributes:
        obs: (N, *obs_shape) what to act on next: where an episode ended, the next one's first.
        obs_final: (N, *obs_shape) what the actions led to; equals `obs` where none ended.
        reward: (N,) float32, unclipped.
        terminated: (N,) bool; never true together with `truncated`.
        truncated: (N,) bool.
        frames: simulator frames used, summed over environments.
        episode_return: (N,) float64, unclipped; NaN except where an episode ended.
        episode_length: (N,) int64 in steps; 0 except where an episode ended.
        success: (N,) float64, what ended episodes said of their success; NaN elsewhere.
    """

    obs: np.ndarray
    obs_final: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    frames: int
    episode_return: np.ndarray
    episode_length: np.ndarray
    success: np.ndarray


@dataclass(frozen=True)
class GroupStep:
    """One step of one process; `finals` and `successes` map positions of ended episodes."""

    obs: np.ndarray
    finals: dict[int, np.ndarray]
    reward: list[float]
    terminated: list[bool]
    truncated: list[bool]
    frames: int
    successes: dict[int, float]


class EnvGroup:
    """The environments of one process; `first` is the index of the first one."""

    def __init__(
        self, make_env: MakeEnv, rngs: Sequence[np.random.Generator], first: int = 0
    ) -> None:
        self._make_env, self._rngs, self._first = make_env, rngs, first
        self._envs = [self._made(position) for position in range(len(rngs))]
        self.spec = self._envs[0].spec

    def _made(self, position: int) -> Env:
        try:
            return self._make_env(self._rngs[position])
        except (ValueError, ImportError):
            raise
        except BaseException as error:
            _let_through(error)
            raise EnvFailed(
                f"environment {self._first + position} could not be made: {said(error)}; mend it"
            ) from error

    def reset(self) -> np.ndarray:
        """Start an episode everywhere; returns (n, *obs_shape)."""
        return np.stack([self._call(i, "reset") for i in range(len(self._envs))])

    def step(self, actions: Sequence[int] | np.ndarray) -> GroupStep:
        """Step every environment and restart those whose episode ended."""
        rows, finals, successes, frames = [], {}, {}, 0
        for position, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            obs, reward, terminated, truncated = self._call(position, "step", action)
            frames += env.step_frames
            if terminated or truncated:
                if env.simulator.success is not None:
                    successes[position] = env.simulator.success
                finals[position] = np.array(obs)  # its reset may write into the same array
                obs = self._call(position, "reset")
            rows.append((obs, reward, terminated, truncated))
        obs, reward, terminated, truncated = map(list, zip(*rows, strict=True))
        return GroupStep(np.stack(obs), finals, reward, terminated, truncated, frames, successes)

    def _call(self, position: int, method: str, *arguments: Any) -> Any:
        """Call a method of one environment; say which one it was, if its code fails."""
        env = self._envs[position]
        try:
            return getattr(env, method)(*arguments)
        except MissingPackage:
            raise
        except BaseException as error:
            _let_through(error)
            if method == "load_state_dict" and isinstance(error, ValueError):
                raise  # the contract's own words about a state
            number = self._first + position
            if isinstance(error, EnvFailed):  # it says what was returned
                raise EnvFailed(f"environment {number}: {error}") from error
            place = f"environment {number} of '{env.spec.id}'"
            if isinstance(error, NotFinite):  # the simulator's own
                raise NotFinite(f"{place}, {error}") from error
            raise EnvFailed(
                f"{place}: {method}() raised {said(error)}; mend the environment"
            ) from error

    def render(self) -> np.ndarray:
        """Return the picture of the first environment, uint8 (height, width, 3)."""
        return np.array(self._call(0, "render"))  # it may draw into one array every time

    def learned(self) -> list[list[State]]:
        """Return the running statistics of each environment's wrappers."""
        return [env.simulator.learned() for env in self._envs]

    def take_over(self, learned: Sequence[list[State]], freeze: bool) -> None:
        """Go on with running statistics that `learned` returned."""
        for env, statistics in zip(self._envs, learned, strict=True):
            env.simulator.take_over(statistics, freeze)

    def get_states(self, level: str = "exact") -> list[State]:
        """Return every environment's state, as `VectorEnv.state_dict` does."""
        return [self._call(i, "state_dict", level) for i in range(len(self._envs))]

    def set_states(self, states: Sequence[State]) -> list[str | None]:
        """Restore every environment's state; return why an episode does not go on, else None.

        The reason is empty where that is how it is resumed; it needs a `reset` then.
        """
        reasons = list[str | None]()
        for position, state in enumerate(states):
            try:
                self._call(position, "load_state_dict", state)
                reasons.append(None if state.get("running", True) else state.get("untold", ""))
            except CannotContinue as error:
                self._renew(position, state)
                reasons.append(str(error))
        return reasons

    def _renew(self, position: int, state: State) -> None:
        """Replace an environment by a new one, which goes on with the generator of a state."""
        with suppress(EnvFailed, ValueError):  # of one that was half restored
            self._call(position, "close")
        self._envs[position] = self._made(position)
        no_episode = {"running": False, "simulator": None}
        self._call(position, "load_state_dict", {**state, **no_episode})

    def close(self) -> None:
        """Close every environment; what they raise then costs nothing, and is a warning."""
        for position in range(len(self._envs)):
            try:
                self._call(position, "close")
            except (EnvFailed, ValueError) as error:
                warnings.warn(str(error), stacklevel=2)


def _let_through(error: BaseException) -> None:
    """Raise an interrupt that a person asked for, which no worker gets."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        raise error


class _LocalGroup(EnvGroup):
    """The one group of this process, called as `WorkerGroups` are."""

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self, method)(*arguments[0])]


class VectorEnv:
    """N environments in lockstep.

    Attributes:
        spec: description of each of them.
        num_envs: how many there are.
        restarts: whether a state was loaded from which not all episodes go on: call `reset`.
        restart_reason: why the first environment cannot go on from the state that was loaded or
            taken last, though it was to be continued; else empty.
    """

    def __init__(
        self,
        spec: EnvSpec,
        make_env: MakeEnv,
        rngs: Sequence[np.random.Generator],
        workers: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
        """Build the environments, here (`workers` 0) or split over at most N processes.

        `make_env` builds one from a generator; with workers it must be picklable. A process may
        take `timeout` seconds to answer.

        Raises:
            ValueError: for a generator used twice, or a bad number of workers.
        """
        if len({id(rng.bit_generator) for rng in rngs}) < len(rngs):
            raise ValueError("rngs holds one generator twice: each environment needs its own")
        if not 0 <= workers <= len(rngs):
            raise ValueError(f"workers is {workers}: allowed are 0 to num_envs = {len(rngs)}")
        self.spec = spec
        self.num_envs = len(rngs)
        bounds = [self.num_envs * i // max(workers, 1) for i in range(max(workers, 1) + 1)]
        self._slices = [slice(a, b) for a, b in pairwise(bounds)]
        if workers == 0:
            self._groups = _LocalGroup(make_env, rngs)
        else:
            arguments = [(make_env, rngs[part], part.start) for part in self._slices]
            self._groups = WorkerGroups(EnvGroup, arguments, timeout)
        self._obs: np.ndarray | None = None
        self.restarts, self.restart_reason = False, ""
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, dtype=np.int64)

    @property
    def obs(self) -> np.ndarray:
        """The observations to act on, (N, *obs_shape)."""
        if self._obs is None:
            raise RuntimeError("no episode is running: call reset() or load_state_dict() first")
        return self._obs

    def reset(self) -> np.ndarray:
        """Start an episode everywhere; call it at the start of a run, or where it `restarts`."""
        parts = self._groups.call("reset", [()] * len(self._slices))
        obs = self._checked_obs(np.concatenate(parts))
        self._return[:] = 0
        self._length[:] = 0
        self._check_finite("first observation", obs)
        self._obs, self.restarts = obs, False
        return obs

    def step(self, actions: np.ndarray) -> VectorStep:
        """Step every environment; an episode that ends restarts within the step.

        Raises:
            ValueError: unless the actions are N integers in range, or floats (N, action_dim) in
                [−1, 1]; nothing has moved then.
            NotFinite: when a reward or an observation is NaN or infinite. Go on from an earlier
                state: the environments have moved.
            RuntimeError: before `reset` or `load_state_dict`, or when a worker failed.
        """
        chosen = self._checked(actions)
        parts: list[GroupStep] = self._groups.call(
            "step", [(chosen[part],) for part in self._slices]
        )
        obs = self._checked_obs(np.concatenate([part.obs for part in parts]))
        obs_final, success = obs.copy(), np.full(self.num_envs, np.nan)
        for group, part in zip(self._slices, parts, strict=True):
            for position, final in part.finals.items():
                obs_final[group.start + position] = final
            for position, succeeded in part.successes.items():
                success[group.start + position] = succeeded
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
            reward = np.array([value for part in parts for value in part.reward])
            reward32 = reward.astype(np.float32)
        terminated = np.array([flag for part in parts for flag in part.terminated])
        truncated = np.array([flag for part in parts for flag in part.truncated])
        self._return += reward
        self._length += 1
        self._check_finite("reward", reward32)
        self._check_finite("observation", obs_final)
        ended = terminated | truncated
        episode_return = np.where(ended, self._return, np.nan)
        episode_length = np.where(ended, self._length, 0)
        self._return[ended] = 0
        self._length[ended] = 0
        if ended.any():
            self._check_finite("first observation", obs)
        self._obs = obs
        return VectorStep(
            obs=obs,
            obs_final=obs_final,
            reward=reward32,
            terminated=terminated,
            truncated=truncated,
            frames=sum(part.frames for part in parts),
            episode_return=episode_return,
            episode_length=episode_length,
            success=success,
        )

    def _checked_obs(self, obs: np.ndarray) -> np.ndarray:
        spec = self.spec
        expected, cast = (self.num_envs, *spec.obs_shape), np.dtype(spec.obs_dtype)
        if obs.shape != expected or (cast.kind == "u" and obs.dtype != cast):
            raise EnvFailed(
                f"env '{spec.id}' returned {obs.dtype} of shape {obs.shape[1:]}: allowed is "
                f"{spec.obs_dtype} of shape {spec.obs_shape}, as its spec says; mend its family"
            )
        return obs

    def _check_finite(self, what: str, values: np.ndarray) -> None:
        """Raise for the first environment whose entry of (N, …) is NaN or infinite."""
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return
        index = int(np.argwhere(~np.isfinite(values))[0, 0])
        place = f"environment {index} of '{self.spec.id}', episode step {self._length[index]}"
        entries = np.ravel(values[index])
        position = np.flatnonzero(~np.isfinite(entries))[0]
        entry = f"entry {position} of the {what}" if values.ndim > 1 else f"the {what}"
        raise NotFinite(f"{place}: {entry} is {entries[position]}, not a finite number")

    def _checked(self, actions: np.ndarray) -> np.ndarray | list[int]:
        _ = self.obs  # raises before the first reset
        if self.spec.num_actions is None:
            return checked_actions(self.spec, actions, (self.num_envs,))
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(
                f"actions are {chosen.dtype} of shape {chosen.shape}: "
                f"allowed are {self.num_envs} integers"
            )
        if chosen.min() < 0 or chosen.max() >= self.spec.num_actions:
            raise ValueError(
                f"actions {chosen.tolist()} of env '{self.spec.id}' are out of range: "
                f"allowed are 0 to {self.spec.num_actions - 1}"
            )
        return chosen.tolist()

    def render(self) -> np.ndarray:
        """Return the picture of the first environment, uint8 (height, width, 3).

        Raises:
            MissingPackage: when the package that draws it is not installed.
        """
        # Every worker is asked, since they answer together; all but one picture is dropped.
        return self._groups.call("render", [()] * len(self._slices))[0]

    def state_dict(self, level: str = "exact") -> State:
        """Return everything that decides the future, as a copy; it fits any number of workers.

        `level`, of `LEVELS`, is how environments go on from it that were tried.
        """
        parts = self._groups.call("get_states", [(level,)] * len(self._slices))
        states = [state for part in parts for state in part]
        self.restart_reason = next(filter(None, (s.get("untold") for s in states)), "")
        return {
            "envs": states,
            "obs": self.obs.copy(),
            "episode_return": self._return.copy(),
            "episode_length": self._length.copy(),
        }

    def load_state_dict(
        self, state: State, rngs: Sequence[np.random.Generator] | None = None
    ) -> None:
        """Continue where `state` was taken; without a reset, unless it `restarts` then.

        `rngs` replace the generators whose states the environments go on with. An open episode that
        draws from one of its own keeps that.

        Raises:
            ValueError: when the state has another number of environments or other ones.
        """
        states = state["envs"]
        if rngs is not None:
            rng_states = map(rng_state, rngs)
            states = [own | {"rng": rng} for own, rng in zip(states, rng_states, strict=True)]
        if len(states) != self.num_envs:
            raise ValueError(f"a state of {len(states)} environments cannot fill {self.num_envs}")
        parts = self._groups.call("set_states", [(states[part],) for part in self._slices])
        reasons: list[str] = [why for part in parts for why in part if why is not None]
        self._obs = state["obs"].copy()
        self.restarts, self.restart_reason = bool(reasons), next(filter(None, reasons), "")
        self._return[:] = state["episode_return"]
        self._length[:] = state["episode_length"]

    def learned(self) -> list[list[State]]:
        """Return the running statistics of each environment's wrappers, as a copy.

        Those are Gymnasium's `NormalizeObservation` and `NormalizeReward`, and others with their
        attributes. Statistics outlive episodes.
        """
        parts = self._groups.call("learned", [()] * len(self._slices))
        return [statistics for part in parts for statistics in part]

    def take_over(self, learned: Sequence[list[State]], freeze: bool = False) -> None:
        """Go on with running statistics that as many environments or more `learned`."""
        given = [(learned[part], freeze) for part in self._slices]
        self._groups.call("take_over", given)

    def close(self) -> None:
        """Close the environments and end the workers; harmless when repeated."""
        self._groups.close()
