"""Any environment of Gymnasium's registry, as ``gym/<id>``.

The module that registers it is imported with ``rlplast --import MODULE``, or by its own name in the
id, ``gym/module:Id-v0``; both are looked for in the current folder too. Environments have the
wrappers that they were registered with; only the count of the step limit is ours.

`rlplast.envs.levels` says how a run goes on after an interruption. Every episode is reset with a
seed of its own, drawn from our generator, so an uninterrupted run is the same at every level.

Options: those of `rlplast.envs.control`, whether actions are continuous or not, and

- ``kwargs``: arguments of the environment, such as ``{map_name: 8x8}``;
- ``keys``: entries of a Dict observation that the agent sees; all by default;
- ``frame_stack``: newest pictures that the agent sees;
- ``longest_replay``: steps of an episode that a resume may replay; a longer one is restarted.
"""

import dataclasses
import importlib
import pickle
import reprlib
import zlib
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np

from rlplast.envs.base import (
    CannotContinue,
    EnvFailed,
    EnvSpec,
    MissingPackage,
    State,
    UnknownEnv,
    load_rng_state,
    plain,
    require,
    rng_state,
    said,
)
from rlplast.envs.border import learners
from rlplast.envs.control import control_options, control_spec, task_env
from rlplast.envs.gl import choose_gl, compiler_first
from rlplast.envs.options import Family, Option, count
from rlplast.envs.replayed import RecordedEnv
from rlplast.envs.spaces import acted, seen
from rlplast.plugins import import_named

__all__ = [
    "FAMILY",
    "PREFIX",
    "CustomTask",
    "module_of",
    "other_version",
    "own_ids",
    "record_of",
    "register_again",
    "registration",
]

PREFIX = "gym/"

# Attributes of every wrapper of Gymnasium's that no episode changes.
_FIXED = (
    "env",
    "_action_space",
    "_observation_space",
    "_metadata",
    "_cached_spec",
    "_saved_kwargs",
)

_NEW_GYM = (
    "if it was written for the old Gym, let reset(self, *, seed=None, options=None) return "
    "(observation, info) and step five values, with terminated and truncated in place of done"
)


def registration(env_id: str) -> Any | None:
    """Return Gymnasium's record of an id, or None when there is none."""
    if not env_id.startswith(PREFIX):
        return None
    module, colon, name = env_id.removeprefix(PREFIX).rpartition(":")
    if colon:
        _import(env_id, module)
    return _registry().get(name)


def _import(env_id: str, module: str) -> None:
    if not all(part.isidentifier() for part in module.split(".")):
        raise UnknownEnv(f"env id '{env_id}': {module!r} is no module's name")
    try:
        import_named(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, one that it imports is not
        raise MissingPackage(
            f"env id '{env_id}': there is no module '{error.name}', in the current folder either: "
            "give the command in the folder where it lies, or install the package that has it"
        ) from error
    except Exception as error:
        raise ValueError(
            f"env id '{env_id}': importing '{module}' raised {type(error).__name__}: {error}"
        ) from error


def other_version(env_id: str) -> str | None:
    """Return the newest version of an id in Gymnasium's registry, which lacks the id itself."""
    module, colon, name = env_id.removeprefix(PREFIX).rpartition(":")
    base = name.rpartition("-v")[0]
    versioned = (r for r in _registry().values() if r.version is not None)
    versions = (r for r in versioned if r.id.rpartition("-v")[0] == base)
    newest = max(versions, key=lambda record: record.version, default=None)
    return newest and f"{PREFIX}{module}{colon}{newest.id}"


def own_ids() -> list[str]:
    """Return the registered ids that Gymnasium does not bring along itself."""
    return [
        PREFIX + name
        for name, record in _registry().items()
        if not str(record.entry_point).startswith("gymnasium.")
    ]


def module_of(env_id: str) -> str:
    """Return the module that a registered environment is defined in."""
    entry_point = record_of(env_id).entry_point
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


def record_of(env_id: str) -> Any:
    """Return Gymnasium's record of an id that is registered."""
    record = registration(env_id)
    if record is None:
        raise ValueError(f"env '{env_id}' is not in Gymnasium's registry any more")
    return record


def _registry() -> dict[str, Any]:
    return require("gymnasium", "gymnasium").registry


class CustomTask:
    """One registered environment, which draws from `rng`, under resolved options; a `ControlTask`.

    Raises:
        ValueError: when it cannot be made, or its spaces rule it out.
    """

    step_frames = 1

    def __init__(self, env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self._id, self._rng = env_id, rng
        record = record_of(env_id)
        limit = record.max_episode_steps
        if options["max_episode_steps"] is not None:
            limit = options["max_episode_steps"] * options["action_repeat"]
        # The step limit, the order of calls and the checks are ours. But wrappers of the
        # registration may ask for the limit.
        bare = dataclasses.replace(
            record,
            kwargs=record.kwargs | options["kwargs"],
            max_episode_steps=limit if record.additional_wrappers else None,
            order_enforce=False,
            disable_env_checker=True,
        )
        self._env, self._drawable = _made(env_id, bare)
        self.seen = seen(env_id, self._env.observation_space, options["keys"])
        self._acted = acted(env_id, self._env.action_space)
        self.num_actions, self.bounds = self._acted.count, self._acted.bounds
        layers = _layers(self._env)
        self.learners, self.success = learners(layers), None
        self._stateful = [layer for layer in layers if _has_state(layer)]
        self._others = [layer for layer in layers if not _has_state(layer)]

    def reset(self) -> np.ndarray:
        """Start an episode, with a seed of its own, and return its first observation.

        Raises:
            EnvFailed: when it does not return an observation as its space says, and its info.
        """
        seed = int(self._rng.integers(2**31))
        # Some ignore the seed of a reset, and draw from the generator that they have.
        with suppress(AttributeError):  # of one that shows its own, read only
            self._env.unwrapped.np_random = np.random.default_rng(seed)
        try:
            result = self._env.reset(seed=seed)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            raise EnvFailed(f"env '{self._id}': {error}; {_NEW_GYM}") from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise EnvFailed(
                f"reset() of env '{self._id}' returned {reprlib.repr(result)}: allowed are "
                f"Gymnasium's two: observation, info; {_NEW_GYM}"
            )
        return self.read(result[0])

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Run one step.

        Raises:
            EnvFailed: for anything but Gymnasium's five values, in the types of each.
        """
        result = self._env.step(self.native(action))
        if not isinstance(result, tuple) or len(result) != 5:
            what = f"{len(result)} values" if isinstance(result, tuple) else reprlib.repr(result)
            raise EnvFailed(
                f"step() of env '{self._id}' returned {what}: allowed are Gymnasium's five: "
                f"observation, reward, terminated, truncated, info; {_NEW_GYM}"
            )
        obs_next, reward, terminated, truncated, info = result
        if not _is_number(reward):
            raise EnvFailed(
                f"env '{self._id}' returned {reward!r} as a reward: allowed is one number"
            )
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not _is_number(flag) or flag not in (0, 1):
                raise EnvFailed(
                    f"env '{self._id}' returned {flag!r} as {name}: allowed are True and False"
                )
        success = info.get("is_success") if isinstance(info, dict) else None
        if success is not None and not _is_number(success):
            raise EnvFailed(
                f"env '{self._id}' returned {success!r} as info['is_success']: allowed is one "
                "number, or True or False"
            )
        self.success = None if success is None else float(success)
        return self.read(obs_next), float(reward), bool(terminated), bool(truncated)

    def native(self, action: int | np.ndarray) -> Any:
        """Return an action of a step as the environment's own space has it; a copy."""
        return self._acted.native(action)

    def read(self, obs: Any) -> np.ndarray:
        """Return an observation of the environment's own space as a step does.

        Raises:
            EnvFailed: when it is none.
        """
        try:
            return self.seen.read(obs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise EnvFailed(
                f"env '{self._id}' returned the observation {reprlib.repr(obs)} ({why}), its "
                f"observation_space says {self._env.observation_space}"
            ) from error

    def render(self) -> np.ndarray:
        """Return the picture as uint8 (height, width, 3)."""
        choose_gl()  # it may be MuJoCo's
        picture = self._env.render() if self._drawable else None
        if not isinstance(picture, np.ndarray):
            raise EnvFailed(
                f"env '{self._id}' has no pictures: they need 'rgb_array' in its "
                "metadata['render_modes'] and render() to return an array"
            )
        shape = picture.shape
        if picture.dtype != np.uint8 or shape[2:] != (3,) or not picture.size:
            raise EnvFailed(
                f"render() of env '{self._id}' returned {picture.dtype} of shape {shape}: allowed "
                "is uint8 of shape (height, width, 3), in colours"
            )
        return picture

    def state_dict(self) -> State:
        """Return the state of the environment and its wrappers.

        For the trial it has checksums of the wrappers without a state too.

        Raises:
            CannotContinue: if it has no such methods, or they return what cannot be saved.
        """
        inside = self._env.unwrapped
        if inside in self._others:
            raise CannotContinue(
                f"{type(inside).__name__} has no state_dict() and load_state_dict(state)"
            )
        states = [layer.state_dict() for layer in self._stateful]
        names = [f"{type(layer).__name__}.state_dict()" for layer in self._stateful]
        try:
            layers = [plain(*pair) for pair in zip(states, names, strict=True)]
        except TypeError as error:
            raise CannotContinue(str(error)) from error
        rng = self._generator()
        return {
            "layers": layers,
            "rng": None if rng is None else rng_state(rng),
            "others": [[type(layer).__name__, _checksum(layer)] for layer in self._others],
        }

    def _generator(self) -> np.random.Generator | None:
        """Return the generator that Gymnasium gave, which an environment's own state leaves out."""
        rng = getattr(self._env.unwrapped, "np_random", None)
        return rng if isinstance(rng, np.random.Generator) else None

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was taken.

        Raises:
            CannotContinue: if it does not fit; then this one may be anywhere: build another.
        """
        if len(state["layers"]) != len(self._stateful):
            raise CannotContinue(f"the state of env '{self._id}' is of one with other wrappers")
        try:
            for layer, saved in zip(self._stateful, state["layers"], strict=True):
                layer.load_state_dict(plain(saved))
            rng = self._generator()
            if rng is not None and state["rng"] is not None:
                load_rng_state(rng, state["rng"])
        except KeyboardInterrupt:
            raise  # a person's
        except BaseException as error:  # whatever an environment raises
            raise CannotContinue(
                f"the state of env '{self._id}' cannot be put back: {said(error)}"
            ) from error

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _is_number(value: Any) -> bool:
    if type(value) in (bool, float):
        return True
    if not isinstance(value, int | float | np.generic | np.ndarray):
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "biuf"


def _made(env_id: str, record: Any) -> tuple[Any, bool]:
    """Return an environment as Gymnasium makes it, and whether it draws pictures."""
    make = require("gymnasium", "gymnasium").make
    try:
        if not _draws(record):
            return make(record), False
        compiler_first()
        try:
            return make(record, render_mode="rgb_array"), True
        except TypeError as error:
            if "render_mode" not in str(error):  # which its constructor does not take
                raise
            return make(record), False
    except (ImportError, KeyboardInterrupt):
        raise  # it names what is missing; a person's
    except BaseException as error:
        raise ValueError(
            f"env '{env_id}' cannot be made: {said(error)}; mend its arguments (env.options: "
            "{kwargs: …}), or install the versions that its package wants"
        ) from error


def _draws(record: Any) -> bool:
    entry_point = record.entry_point
    if isinstance(entry_point, str):
        registrations = require("gymnasium.envs.registration", "gymnasium")
        entry_point = registrations.load_env_creator(entry_point)
    modes = getattr(entry_point, "metadata", {}).get("render_modes")
    return "rgb_array" in (modes or ())


def _layers(env: Any) -> list[Any]:
    """Return an environment's wrappers, the outermost first, and itself."""
    layers = [env]
    while layers[-1] is not layers[-1].unwrapped:
        layers.append(layers[-1].env)
    return layers


def _has_state(layer: Any) -> bool:
    """Say whether a layer has the two methods; a wrapper may pass on those of what it wraps."""
    return all(hasattr(type(layer), name) for name in ("state_dict", "load_state_dict"))


def _checksum(wrapper: Any) -> int | None:
    """Return a checksum of a wrapper's attributes, within one process; None if there is none."""
    held = {k: v for k, v in vars(wrapper).items() if k not in _FIXED}
    try:
        return zlib.crc32(pickle.dumps([v for v in held.values() if type(v) is not FunctionType]))
    except Exception:  # whatever an object raises that cannot be pickled
        return None


def _describe(env_id: str, task: CustomTask, options: dict[str, Any]) -> EnvSpec:
    action_dim = None if task.bounds is None else len(task.bounds[0])
    limit = record_of(env_id).max_episode_steps
    size, number, stack = task.seen.shape[0], task.num_actions, options["frame_stack"]
    if stack > 1 and len(task.seen.shape) < 2:
        raise ValueError(
            f"option 'frame_stack' of env '{env_id}' is {stack}: it stacks pictures, and this one "
            f"gives shape {task.seen.shape}; allowed is 1"
        )
    return dataclasses.replace(
        control_spec(env_id, size, action_dim, limit, options, num_actions=number),
        obs_shape=task.seen.shape,
        obs_dtype=task.seen.dtype,
        obs_scale=task.seen.scale,
        frame_stack=stack,
        repeat_first=stack > 1,
        tried=True,
    )


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = CustomTask(env_id, np.random.default_rng(0), options)
    try:
        return _describe(env_id, task, options)
    finally:
        task.close()


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> RecordedEnv:
    task = CustomTask(env_id, rng, options)
    spec, limit = _describe(env_id, task, options), record_of(env_id).max_episode_steps
    env = task_env(spec, task, rng, options, limit)
    env.border = dataclasses.replace(
        env.border, success=lambda: task.success, learners=task.learners
    )
    return RecordedEnv(env, rng, options["longest_replay"])


def _options(env_id: str) -> dict[str, Option]:
    def mapping(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)

    def names(value: Any) -> bool:
        listed = isinstance(value, list) and len(value) > 0
        return value is None or (listed and all(isinstance(key, str) for key in value))

    return control_options(record_of(env_id).max_episode_steps) | {
        "kwargs": Option({}, "mapping of arguments", mapping),
        "keys": Option(None, "list of names, null: all", names),
        "frame_stack": count(1),
        "longest_replay": count(10_000),
    }


FAMILY = Family(
    ids=(),
    options=_options,
    summary=lambda env_id: f"{env_id.removeprefix(PREFIX)} of Gymnasium's registry",
    source="registered by the user",
    spec=_spec,
    make=_make,
)
