"""Environments of the user's own: any id in Gymnasium's registry, as `gym/<id>`.

The module that registers them is imported with `rlplast --import MODULE`. What they must offer:

- observations: a Box of floats, flattened here; actions: Discrete, or a Box with finite bounds;
- all randomness from `self.np_random`, which is replaced by our generator (never from a seed);
- on the environment inside all wrappers `state_dict()`, which returns all that an episode changes
  except `np_random`, as a dict of arrays, numbers, strings, bools, None, and lists and dicts of
  these; and `load_state_dict(state)`, which puts it back, so that a run continues exactly;
- no truncation of its own: the limit is the registered `max_episode_steps`.

Wrappers that an entry point applies stay; one with a state needs the two methods as well.

Options: those of `rlplast.envs.control`, whether actions are continuous or not.
"""

import dataclasses
import importlib
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, EpisodicEnv, MissingPackage, State, plain, require
from rlplast.envs.control import control_env, control_options, control_spec
from rlplast.envs.options import Family
from rlplast.envs.spaces import action_size, observation_size

__all__ = [
    "FAMILY",
    "PREFIX",
    "CustomTask",
    "module_of",
    "own_ids",
    "register_again",
    "registration",
]

PREFIX = "gym/"

# Gymnasium's wrappers that remember something between steps, without a way to save it.
_STATEFUL_WRAPPERS = (
    "Autoreset DelayObservation FrameStackObservation MaxAndSkipObservation NormalizeObservation "
    "NormalizeReward RecordEpisodeStatistics StickyAction TimeAwareObservation TimeLimit"
).split()


def registration(env_id: str) -> Any | None:
    """Return Gymnasium's record of an id, or None when there is none."""
    if not env_id.startswith(PREFIX):
        return None
    return _registry().get(env_id.removeprefix(PREFIX))


def own_ids() -> list[str]:
    """Return the registered ids that Gymnasium does not bring along itself."""
    return [
        PREFIX + name
        for name, record in _registry().items()
        if not str(record.entry_point).startswith("gymnasium.")
    ]


def module_of(env_id: str) -> str:
    """Return the module that a registered environment is defined in."""
    entry_point = _record(env_id).entry_point
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return getattr(entry_point, "__module__", "")


def register_again(record: Any) -> None:
    """Put a record back into Gymnasium's registry, in a process that may lack it."""
    if isinstance(record.entry_point, str):
        # The module of the environment may register it itself, which has to come first: after
        # the record, Gymnasium would warn that one replaces the other.
        importlib.import_module(record.entry_point.partition(":")[0])
    _registry()[record.id] = record


def _record(env_id: str) -> Any:
    return _registry()[env_id.removeprefix(PREFIX)]


def _registry() -> dict[str, Any]:
    try:
        return require("gymnasium", "gymnasium").registry
    except MissingPackage:
        return {}  # then nothing is registered


class CustomTask:
    """One environment of the user's own; a `ControlTask`."""

    step_frames = 1

    def __init__(self, env_id: str, rng: np.random.Generator | None) -> None:
        """Build a registered environment that draws from `rng`; without one only to look at it.

        Raises:
            ValueError: when its spaces, its wrappers or its missing methods rule it out.
        """
        self._id = env_id
        record = _record(env_id)
        self._drawable = _draws(record)
        # The step limit, the order of calls and the checks are ours.
        bare = dataclasses.replace(
            record, max_episode_steps=None, order_enforce=False, disable_env_checker=True
        )
        mode = {"render_mode": "rgb_array"} if self._drawable else {}
        self._env = require("gymnasium", "gymnasium").make(bare, **mode)
        self._layers = _layers_with_state(env_id, self._env)
        if rng is not None:
            self._env.unwrapped.np_random = rng
        self.obs_size = observation_size(env_id, self._env.observation_space)
        size = action_size(env_id, self._env.action_space)
        self.num_actions = size if isinstance(size, int) else None
        self.bounds = None if isinstance(size, int) else size

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        obs, _ = self._env.reset()
        return self._flat(obs)

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Run one step.

        Raises:
            ValueError: when the environment breaks the contract of this module.
        """
        space = self._env.action_space
        if isinstance(action, np.ndarray):
            native = action.reshape(space.shape)
        else:
            native = space.start + action
        obs_next, reward, terminated, truncated, _ = self._env.step(native)
        if truncated and not terminated:
            raise ValueError(
                f"env '{self._id}' truncated its episode: leave the limit to max_episode_steps, "
                "where it was registered or among the options"
            )
        if np.ndim(reward) or not isinstance(reward, int | float | np.number | np.ndarray):
            raise ValueError(
                f"env '{self._id}' returned {reward!r} as a reward: allowed is one number"
            )
        return self._flat(obs_next), float(reward), bool(terminated)

    def _flat(self, obs: Any) -> np.ndarray:
        flat = np.asarray(obs).reshape(-1)
        if flat.size != self.obs_size:
            raise ValueError(
                f"env '{self._id}' returned an observation of shape {np.shape(obs)}, its "
                f"observation_space says {self._env.observation_space.shape}"
            )
        return flat

    def render(self) -> np.ndarray:
        """Return the picture as uint8 (height, width, 3)."""
        picture = self._env.render() if self._drawable else None
        if not isinstance(picture, np.ndarray):
            raise ValueError(
                f"env '{self._id}' has no pictures: they need 'rgb_array' in its "
                "metadata['render_modes'] and render() to return an array"
            )
        return picture

    def state_dict(self) -> State:
        """Return the state of the environment and of its wrappers that have one."""
        try:
            return {"layers": [plain(layer.state_dict()) for layer in self._layers]}
        except TypeError as error:
            raise ValueError(f"state_dict() of env '{self._id}': {error}") from error

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken."""
        if len(state["layers"]) != len(self._layers):
            raise ValueError(f"the state of env '{self._id}' is of one with other wrappers")
        for layer, layer_state in zip(self._layers, state["layers"], strict=True):
            layer.load_state_dict(plain(layer_state))

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _draws(record: Any) -> bool:
    entry_point = record.entry_point
    if isinstance(entry_point, str):
        registrations = require("gymnasium.envs.registration", "gymnasium")
        entry_point = registrations.load_env_creator(entry_point)
    modes = getattr(entry_point, "metadata", {}).get("render_modes")
    return "rgb_array" in (modes or ())


def _layers_with_state(env_id: str, env: Any) -> list[Any]:
    """Return the environment and those of its wrappers that have a state, outermost first.

    Raises:
        ValueError: when the environment cannot save its state, or a wrapper has one but cannot.
    """
    layers = []
    while True:
        name = type(env).__name__
        can_save = hasattr(env, "state_dict") and hasattr(env, "load_state_dict")
        if can_save:
            layers.append(env)
        elif env is env.unwrapped:
            raise ValueError(
                f"env '{env_id}' cannot be resumed exactly: give its class {name} the methods "
                "state_dict(), which returns all that an episode changes except np_random, as a "
                "dict of arrays, numbers, strings, bools, None, lists and dicts, and "
                "load_state_dict(state), which puts it back"
            )
        elif name in _STATEFUL_WRAPPERS:
            raise ValueError(
                f"env '{env_id}' is wrapped in {name}, whose state cannot be saved: leave it out"
            )
        if env is env.unwrapped:
            return layers
        env = env.env


def _describe(env_id: str, task: CustomTask, options: dict[str, Any]) -> EnvSpec:
    action_dim = None if task.bounds is None else len(task.bounds[0])
    limit = _record(env_id).max_episode_steps
    return control_spec(
        env_id, task.obs_size, action_dim, limit, options, num_actions=task.num_actions
    )


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = CustomTask(env_id, rng=None)
    try:
        return _describe(env_id, task, options)
    finally:
        task.close()


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> EpisodicEnv:
    task = CustomTask(env_id, rng)
    return control_env(_describe(env_id, task, options), task, rng, options)


FAMILY = Family(
    ids=(),
    options=lambda env_id: control_options(_record(env_id).max_episode_steps),
    summary=lambda env_id: f"{env_id.removeprefix(PREFIX)} of Gymnasium's registry",
    source="registered by the user",
    spec=_spec,
    make=_make,
)
