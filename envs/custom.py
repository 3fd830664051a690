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
import difflib
import pickle
import reprlib
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from rlplast.envs.base import (
    CannotContinue,
    EnvFailed,
    EnvSpec,
    MissingPackage,
    State,
    UnknownEnv,
    load_rng_state,
    plain,
    rng_state,
    said,
)
from rlplast.envs.control import ControlSimulator, ControlTask, control_options, control_spec
from rlplast.envs.gl import choose_gl, compiler_first
from rlplast.envs.options import Family, Option, count
from rlplast.envs.replayed import RecordedEnv
from rlplast.envs.spaces import acted, seen
from rlplast.plugins import import_named

__all__ = [
    "PREFIX",
    "family",
    "module_of",
    "nearest",
    "own_ids",
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
    return gymnasium.registry.get(name)


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


def nearest(env_id: str) -> str | None:
    """Return the id in Gymnasium's registry that is most like one that is not, if any is."""
    module, colon, name = env_id.removeprefix(PREFIX).rpartition(":")
    # Any two short names with a version are alike, so these need a nearer match than usual.
    near = difflib.get_close_matches(name, gymnasium.registry, 1, 0.8)
    return f"{PREFIX}{module}{colon}{near[0]}" if near else None


def own_ids() -> list[str]:
    """Return the registered ids that Gymnasium does not bring along itself."""
    return [
        PREFIX + name
        for name, record in gymnasium.registry.items()
        if not str(record.entry_point).startswith("gymnasium.")
    ]


def module_of(env_id: str) -> str:
    """Return the module that a registered environment is defined in."""
    entry_point = gymnasium.registry[env_id.removeprefix(PREFIX)].entry_point
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return getattr(entry_point, "__module__", "")


class _CustomTask(ControlTask):
    """The environment of Gymnasium's `record`, which draws from `rng`, under resolved options."""

    def __init__(
        self, record: Any, env_id: str, rng: np.random.Generator, options: dict[str, Any]
    ) -> None:
        self._id, self._rng = env_id, rng
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
        self._statistics = list(_statistics(layers))
        self._stateful = [layer for layer in layers if _has_state(layer)]
        self._others = [layer for layer in layers if not _has_state(layer)]

    def reset(self) -> np.ndarray:
        seed = int(self._rng.integers(2**31))
        # Some ignore the seed of a reset, and draw from the generator that they have.
        with suppress(AttributeError):  # of one that shows its own, read only
            self._env.unwrapped.np_random = np.random.default_rng(seed)
        result = self._env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise EnvFailed(
                f"reset() of env '{self._id}' returned {reprlib.repr(result)}: allowed are "
                f"Gymnasium's two: observation, info; {_NEW_GYM}"
            )
        return self.read(result[0])

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        result = self._env.step(self.native(action))
        if not isinstance(result, tuple) or len(result) != 5:
            what = f"{len(result)} values" if isinstance(result, tuple) else reprlib.repr(result)
            raise EnvFailed(
                f"step() of env '{self._id}' returned {what}: allowed are Gymnasium's five: "
                f"observation, reward, terminated, truncated, info; {_NEW_GYM}"
            )
        obs_next, reward, terminated, truncated, info = result
        success = info.get("is_success") if isinstance(info, dict) else None
        numbers = {"reward": reward, "info['is_success']": 0 if success is None else success}
        flags = {"terminated": terminated, "truncated": truncated}
        for name, value in (numbers | flags).items():
            if not _is_number(value) or (name in flags and value not in (0, 1)):
                allowed = "True and False" if name in flags else "one number, or True or False"
                raise EnvFailed(
                    f"env '{self._id}' returned {value!r} as {name}: allowed is {allowed}"
                )
        self.success = None if success is None else float(success)
        return self.read(obs_next), float(reward), bool(terminated), bool(truncated)

    def native(self, action: int | np.ndarray) -> Any:
        return self._acted.native(action)

    def read(self, obs: Any) -> np.ndarray:
        try:
            return self.seen.read(obs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise EnvFailed(
                f"env '{self._id}' returned the observation {reprlib.repr(obs)} ({why}), its "
                f"observation_space says {self._env.observation_space}"
            ) from error

    def render(self) -> np.ndarray:
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
        """Return the state of the environment and its wrappers; of those without one a checksum."""
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
        """Continue where `state` was taken; if it does not fit, this one may be anywhere."""
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

    def learned(self) -> list[State]:
        statistics = [getattr(wrapper, name) for wrapper, name in self._statistics]
        return [{part: plain(getattr(one, part)) for part in _PARTS} for one in statistics]

    def take_over(self, learned: Sequence[State], freeze: bool) -> None:
        for (wrapper, name), state in zip(self._statistics, learned, strict=True):
            statistics = getattr(wrapper, name)
            for part in _PARTS:
                setattr(statistics, part, np.array(state[part])[()])
            if freeze:
                wrapper.update_running_mean = False

    def close(self) -> None:
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
    try:
        if not _draws(record):
            return gymnasium.make(record), False
        compiler_first()
        try:
            return gymnasium.make(record, render_mode="rgb_array"), True
        except TypeError as error:
            if "render_mode" not in str(error):  # which its constructor does not take
                raise
            return gymnasium.make(record), False
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
        entry_point = load_env_creator(entry_point)
    modes = getattr(entry_point, "metadata", {}).get("render_modes")
    return "rgb_array" in (modes or ())


def _layers(env: Any) -> list[Any]:
    """Return an environment's wrappers, the outermost first, and itself."""
    layers = [env]
    while layers[-1] is not layers[-1].unwrapped:
        layers.append(layers[-1].env)
    return layers


_PARTS = ("mean", "var", "count")


def _statistics(wrappers: Iterable[Any]) -> Iterable[tuple[Any, str]]:
    """Yield wrappers with running statistics as Gymnasium's have them, and the names of these."""
    for wrapper in wrappers:
        for name in ("obs_rms", "return_rms"):
            if name in vars(wrapper) and hasattr(type(wrapper), "update_running_mean"):
                yield wrapper, name


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


def _spec(record: Any, env_id: str, options: dict[str, Any]) -> EnvSpec:
    """Describe an environment, which is made for it and closed again."""
    with closing(_make(record, env_id, np.random.default_rng(0), options)) as env:
        return env.spec


def _make(
    record: Any, env_id: str, rng: np.random.Generator, options: dict[str, Any]
) -> RecordedEnv:
    task = _CustomTask(record, env_id, rng, options)
    shape, stack = task.seen.shape, options["frame_stack"]
    if stack > 1 and len(shape) < 2:
        raise ValueError(
            f"option 'frame_stack' of env '{env_id}' is {stack}: it stacks pictures, and this one "
            f"gives shape {shape}; allowed is 1"
        )
    spec = control_spec(
        env_id,
        shape[0],
        None if task.bounds is None else len(task.bounds[0]),
        record.max_episode_steps,
        options,
        num_actions=task.num_actions,
        obs_shape=shape,
        obs_dtype=task.seen.dtype,
        obs_scale=task.seen.scale,
        frame_stack=stack,
        repeat_first=stack > 1,
        tried=True,
    )
    simulator = ControlSimulator(task, options, record.max_episode_steps)
    simulator.obs_dtype = spec.obs_dtype
    return RecordedEnv(spec, simulator, rng, options["longest_replay"])


def _options(record: Any, env_id: str) -> dict[str, Option]:
    def mapping(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)

    def names(value: Any) -> bool:
        listed = isinstance(value, list) and len(value) > 0
        return value is None or (listed and all(isinstance(key, str) for key in value))

    return control_options(record.max_episode_steps) | {
        "kwargs": Option({}, "mapping of arguments", mapping),
        "keys": Option(None, "list of names, null: all", names),
        "frame_stack": count(1),
        "longest_replay": count(10_000),
    }


def family(env_id: str) -> Family | None:
    """Return the family of one environment of Gymnasium's registry; None if it is not there.

    It has Gymnasium's record, since the registry of a worker process may lack it.
    """
    record = registration(env_id)
    return record and Family(
        ids={env_id: f"{env_id.removeprefix(PREFIX)} of Gymnasium's registry"},
        source="registered by the user",
        options=partial(_options, record),
        spec=partial(_spec, record),
        make=partial(_make, record),
    )
