"""What every environment is: its description, its contract, its state and its errors.

A state is a nested dict or list whose leaves are numpy arrays, ints of any size, floats, strings,
bools or None, so that it can be written without pickle (arrays to one file, the rest to JSON).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "CannotContinue",
    "Env",
    "EnvFailed",
    "EnvSpec",
    "MissingPackage",
    "NotFinite",
    "Simulator",
    "State",
    "UnknownEnv",
    "checked_actions",
    "load_rng_state",
    "plain",
    "require",
    "rng_state",
    "said",
]

State: TypeAlias = dict[str, Any]

# How far rounding may carry an action past its bounds of −1 and 1.
_ACTION_TOLERANCE = 1e-6

_NUMBERS = "?bBhHiIlLqQefdFD"  # bools, integers, floats and complex ones, as numpy's characters


class UnknownEnv(ValueError):
    """Raised when an environment id is not in the list; the message names the nearest one."""


class MissingPackage(ImportError):
    """Raised when an environment needs a package that is not installed."""


class CannotContinue(ValueError):
    """Raised when an environment cannot go on from a state; a new episode can begin."""


class NotFinite(RuntimeError):
    """Raised when a reward or an observation is NaN or infinite."""


class EnvFailed(RuntimeError):
    """Raised when the code of an environment raises anything, or returns what it may not."""


@dataclass(frozen=True)
class EnvSpec:
    """What an agent has to know about an environment before it sees it.

    Attributes:
        id: family and name, such as `atari/Asterix`.
        obs_shape: of one observation, without any stack.
        obs_dtype: `uint8` or `float32`.
        frame_stack: how many successive observations the agent sees at once.
        num_actions: actions are the integers 0 … num_actions − 1; None for vectors.
        frames_per_step: simulator frames (control steps) of a full step.
        max_episode_steps: steps until truncation; None for no limit.
        action_dim: actions are float32 (action_dim,) in [−1, 1], rescaled to the environment's own
            bounds; None for integers.
        success_return: return from which an episode counts as a success, where the field has one.
        obs_scale: what networks multiply observations by: 1/255 for pixels.
        clip_rewards: whether agents learn from the sign of rewards, unless their config sets it.
        repeat_first: whether a stack begins as copies of the first observation; else as zeros.
        changes: whether it changes as episodes pass, so that an evaluation on a new one misleads.
        tried: whether a trial says how a run resumes (`rlplast.envs.levels`); else it has a state.

    Raises:
        ValueError: unless exactly one of `num_actions` and `action_dim` is set, and positive.
    """

    id: str
    obs_shape: tuple[int, ...]
    obs_dtype: str = "float32"
    frame_stack: int = 1
    num_actions: int | None = None
    frames_per_step: int = 1
    max_episode_steps: int | None = None
    action_dim: int | None = None
    success_return: float | None = None
    obs_scale: float = 1.0
    clip_rewards: bool = False
    repeat_first: bool = False
    changes: bool = False
    tried: bool = False

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Shape of what networks see: stacked pictures lie beside each other, as channels."""
        if self.frame_stack == 1:
            return self.obs_shape
        if len(self.obs_shape) == 3:  # with channels of its own
            return (self.frame_stack * self.obs_shape[0], *self.obs_shape[1:])
        return (self.frame_stack, *self.obs_shape)

    def __post_init__(self) -> None:
        given = [size for size in (self.num_actions, self.action_dim) if size is not None]
        if len(given) != 1 or given[0] < 1:
            raise ValueError(
                f"env '{self.id}' has num_actions {self.num_actions} and action_dim "
                f"{self.action_dim}: exactly one of them must be set, from 1"
            )


class Simulator:
    """Dynamics and pictures of an environment, which `Env` makes whole; derive yours from it.

    All its randomness comes from the generator it was built with.

    Attributes:
        step_frames: simulator frames that the last `step` used; an end cuts a skip short.
        steps: steps of the running episode, which `Env` counts.
        success: what the last step said of success; None if nothing.
    """

    step_frames: int = 1
    steps: int = 0
    success: float | None = None

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        raise NotImplementedError

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Return the next observation, the unclipped reward, terminated and truncated.

        `action` is an int, or float32 (action_dim,) in [−1, 1]. The step limit is not its own.
        """
        raise NotImplementedError

    def state_dict(self) -> State:
        """Return all that decides the future, as a copy, but for the generator and `steps`.

        Raises:
            CannotContinue: if the state cannot be read; then a resume begins a new episode.
        """
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken."""
        raise NotImplementedError

    def render(self) -> np.ndarray:
        """Return the picture as uint8 (height, width, 3) without changing the state."""
        raise EnvFailed(f"{type(self).__name__} has no pictures")

    def close(self) -> None:
        """Free what it holds."""

    def read(self, obs: Any) -> np.ndarray:
        """Return what the agent sees of an observation in the environment's own form."""
        return np.asarray(obs)

    def native(self, action: Any) -> Any:
        """Return an action of `step` in the environment's own form."""
        return action

    def learned(self) -> list[State]:
        """Return the running statistics of its wrappers, as a copy."""
        return []

    def take_over(self, learned: Sequence[State], freeze: bool) -> None:
        """Go on with running statistics that another one `learned`; `freeze` them there."""


class Env:
    """One environment: a simulator, a step limit and the generator both of them share.

    The step limit truncates: its last observation still bootstraps (Pardo et al. 2018,
    arXiv:1712.00378).
    """

    def __init__(self, spec: EnvSpec, simulator: Simulator, rng: np.random.Generator) -> None:
        self.spec, self.simulator, self._rng = spec, simulator, rng
        self._running = False

    @property
    def step_frames(self) -> int:
        """Simulator frames that the last `step` used."""
        return self.simulator.step_frames

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        self.simulator.steps = 0
        self._running = True
        return self.simulator.reset()

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Return the next observation, the unclipped reward, terminated and truncated.

        The two flags are never both true: what terminates at the limit has terminated.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when the action is of the wrong kind or shape, or out of range.
        """
        if not self._running:
            raise RuntimeError(f"env '{self.spec.id}' has no episode running: call reset() first")
        checked, simulator = self._checked(action), self.simulator
        steps, limit = simulator.steps + 1, self.spec.max_episode_steps
        try:
            obs_next, reward, terminated, truncated = simulator.step(checked)
        except NotFinite as error:
            raise NotFinite(f"episode step {steps}: {error}") from error
        simulator.steps = steps  # also of one that counts its own in this attribute
        truncated = truncated or (limit is not None and steps >= limit)
        truncated = truncated and not terminated
        self._running = not (terminated or truncated)
        return obs_next, reward, terminated, truncated

    def _checked(self, action: int | np.ndarray) -> int | np.ndarray:
        allowed = self.spec.num_actions
        if allowed is None:
            return checked_actions(self.spec, action)
        if not isinstance(action, int | np.integer) or not 0 <= action < allowed:
            raise ValueError(
                f"action {action} of env '{self.spec.id}' is no integer in range: "
                f"allowed are 0 to {allowed - 1}"
            )
        return int(action)

    def render(self) -> np.ndarray:
        """Return the picture as uint8 (height, width, 3)."""
        return self.simulator.render()

    def state_dict(self, level: str = "exact") -> State:
        """Return all that decides the future, as a copy.

        Where a trial said how it goes on, `level`, of `LEVELS`, is what it said. With ``running:
        False`` a resume begins a new episode; ``untold`` says why, if it was to go on.
        """
        simulator, untold = None, ""
        try:
            simulator = self.simulator.state_dict()
        except CannotContinue as error:
            untold = str(error)
        return {
            "id": self.spec.id,
            "steps": self.simulator.steps,
            "running": self._running and simulator is not None,
            "rng": rng_state(self._rng),
            "simulator": simulator,
            "untold": untold,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken; if it is not running, call `reset` next.

        Raises:
            ValueError: when the state belongs to another environment.
            CannotContinue: when its simulator says so.
        """
        if state["id"] != self.spec.id:
            raise ValueError(f"a state of env '{state['id']}' cannot continue '{self.spec.id}'")
        if state["simulator"] is not None:
            self.simulator.load_state_dict(state["simulator"])
        load_rng_state(self._rng, state["rng"])
        self.simulator.steps = state["steps"]
        self._running = state["running"]

    def close(self) -> None:
        """Free what the simulator holds."""
        self.simulator.close()


def checked_actions(spec: EnvSpec, actions: Any, batch: tuple[int, ...] = ()) -> np.ndarray:
    """Return continuous actions as float32 (*batch, action_dim), clipped to [−1, 1].

    Raises:
        ValueError: for another shape, integers, NaN, or more than 1e-6 beyond the bounds.
    """
    chosen = np.asarray(actions)
    shape = (*batch, spec.action_dim)
    if chosen.shape != shape or chosen.dtype.kind != "f":
        raise ValueError(
            f"actions of env '{spec.id}' are {chosen.dtype} of shape {chosen.shape}: "
            f"allowed are floats of shape {shape}"
        )
    outside = ~(np.abs(chosen) <= 1 + _ACTION_TOLERANCE)  # true for NaN too
    if outside.any():
        raise ValueError(
            f"actions of env '{spec.id}' are out of range or not finite: {chosen[outside][0]} at "
            f"{np.argwhere(outside)[0].tolist()}, allowed is [-1, 1]"
        )
    return chosen.astype(np.float32).clip(-1, 1)


def plain(value: Any, name: str = "state") -> Any:
    """Copy a value into the types that a state may hold; `name` is what errors call it.

    Raises:
        TypeError: for anything that could not be written without pickle.

    Examples:
        >>> plain({"cars": [[np.int64(3), True], None]})
        {'cars': [[3, True], None]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.char not in _NUMBERS:
            raise TypeError(
                f"{name} is an array of {value.dtype}: a state can hold arrays of numbers only, "
                "of up to 64 bits each"
            )
        return np.array(value, value.dtype.newbyteorder("="))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    raise TypeError(f"{name}: a state cannot hold {value!r} of type {type(value).__name__}")


def said(error: BaseException) -> str:
    """Return the type and the message of an error, on one line."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}" if text else name


def rng_state(rng: np.random.Generator) -> State:
    """Return the state of a generator, whatever its bit generator."""
    return plain(rng.bit_generator.state)


def load_rng_state(rng: np.random.Generator, state: State) -> None:
    """Put a generator, in place, where `state` was taken.

    Raises:
        ValueError: when the state is of another bit generator.
    """
    name = type(rng.bit_generator).__name__
    if state["bit_generator"] != name:
        raise ValueError(f"a {state['bit_generator']} state cannot continue a {name} generator")
    rng.bit_generator.state = plain(state)


def require(module: str, install: str) -> ModuleType:
    """Import a package that only some environments need; `install` is pip's name for it.

    Raises:
        MissingPackage: naming the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # the package is there, one of its own dependencies is not
        raise MissingPackage(
            f"the package '{module}' is not installed: pip install '{install}'"
        ) from error
