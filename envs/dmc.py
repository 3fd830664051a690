"""The DeepMind Control Suite, with exact state: `dmc/humanoid-walk`, `dmc/cartpole-swingup`, ….

Tassa et al. 2018, arXiv:1801.00690; Tunyasuvunakool et al. 2020, doi:10.1016/j.simpa.2020.100022.
Observations are float32 vectors, the suite's entries one after the other. The actions of `lqr` have
no bounds and are taken as they are.

Options: those of `rlplast.envs.control`; `gravity` and `friction` multiply the constants of the
model. With `pixels` an observation is a picture, uint8 (3, pixels, pixels), and agents see the
newest `frame_stack` of them (DrQ, Kostrikov et al. 2021, arXiv:2004.13649). Every task lasts 1000
control steps: so does `lqr`, which alone terminates, as a policy that never brings it to rest would
stall an evaluation.
"""

import importlib
import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, NotFinite, Simulator, State, plain, require
from rlplast.envs.control import ControlSimulator, ControlTask, control_options, control_spec
from rlplast.envs.gl import cannot_draw, choose_gl, compiler_first
from rlplast.envs.mjdata import MjDataState, multiply, quiet
from rlplast.envs.options import Family, Option, count

__all__ = ["FAMILY", "DmcTask"]

_INSTALL = "rlplast[dmc]"
_TASK_LIMIT = 1000  # control steps
_UNBOUNDED = 1e10  # the suite's bound of an action that has none
_MOST_PIXELS = 480  # a side: the height that the suite's models have room for
_FRAMES = 3  # of a stack of pictures, as in DrQ
_CAMERAS = {"quadruped": 2}  # that follows it; others' first camera does (DrQ)

# Domain, its tasks, and their sizes of observation and action.
_TABLE = (
    ("acrobot", "swingup swingup_sparse", 6, 1),
    ("ball_in_cup", "catch", 8, 2),
    ("cartpole", "balance balance_sparse swingup swingup_sparse", 5, 1),
    ("cartpole", "two_poles", 8, 1),
    ("cartpole", "three_poles", 11, 1),
    ("cheetah", "run", 17, 6),
    ("dog", "stand walk trot run", 223, 38),
    ("dog", "fetch", 232, 38),
    ("finger", "spin", 9, 2),
    ("finger", "turn_easy turn_hard", 12, 2),
    ("fish", "upright", 21, 5),
    ("fish", "swim", 24, 5),
    ("hopper", "stand hop", 15, 4),
    ("humanoid", "stand walk run", 67, 21),
    ("humanoid", "run_pure_state", 55, 21),
    ("humanoid_CMU", "stand walk run", 137, 56),
    ("lqr", "lqr_2_1", 4, 1),
    ("lqr", "lqr_6_2", 12, 2),
    ("manipulator", "bring_ball bring_peg insert_ball insert_peg", 44, 5),
    ("pendulum", "swingup", 3, 1),
    ("point_mass", "easy hard", 4, 2),
    ("quadruped", "walk run", 78, 12),
    ("quadruped", "escape", 101, 12),
    ("quadruped", "fetch", 90, 12),
    ("reacher", "easy hard", 6, 2),
    ("stacker", "stack_2", 49, 5),
    ("stacker", "stack_4", 63, 5),
    ("swimmer", "swimmer6", 25, 5),
    ("swimmer", "swimmer15", 61, 14),
    ("walker", "stand walk run", 24, 6),
)
_SIZES = {
    f"dmc/{domain}-{task}": (obs_size, action_dim)
    for domain, tasks, obs_size, action_dim in _TABLE
    for task in tasks.split()
}

# Arrays of the model that a domain draws when it is built or edits when an episode starts.
_EDITED = {
    "finger": ("dof_damping", "site_pos", "site_rgba", "site_size"),
    "fish": ("geom_pos", "geom_rgba"),
    "lqr": ("jnt_stiffness",),
    "manipulator": ("body_pos", "body_quat"),
    "point_mass": ("wrap_prm",),
    "quadruped": ("hfield_data",),
    "reacher": ("geom_pos", "geom_size"),
    "stacker": ("body_pos",),
    "swimmer": ("geom_pos", "light_pos"),
}


class DmcTask(ControlTask):
    """One task, one control step at a time.

    It steps the suite's task and physics itself: the suite's own environment would start a new
    episode when it is stepped on after a termination.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        rng: np.random.Generator,
        gravity: float = 1.0,
        friction: float = 1.0,
    ) -> None:
        self._name, self.domain = f"dmc/{domain}-{task}", domain
        suite = _import_suite()
        self._mujoco = require("mujoco", _INSTALL)
        self._physics_error = importlib.import_module("dm_control.rl.control").PhysicsError
        # A legacy stream over our generator's bits: restoring the generator restores it too, but
        # for the second of each pair of normal numbers, which it keeps itself.
        self._random = np.random.RandomState(rng.bit_generator)
        kwargs = {"random": self._random, "time_limit": float("inf")}
        with quiet(self._mujoco):
            env = suite.load(domain, task, task_kwargs=kwargs)
        self._task, self._physics = env.task, env.physics
        multiply(self._physics.model.ptr, gravity, friction)
        # A context for pictures is made by `render` alone: quadruped-escape would make one at
        # every reset, which fails on machines without OpenGL.
        self._physics._make_rendering_contexts = lambda: None
        self._substeps = round(env.control_timestep() / self._physics.timestep())
        self._data = MjDataState(self._physics.data.ptr)
        edited = {name: getattr(self._physics.model, name) for name in _EDITED.get(domain, ())}
        self._edited = {name: array for name, array in edited.items() if array.size}
        space = env.action_spec()
        bounded = bool(np.all(np.abs([space.minimum, space.maximum]) < _UNBOUNDED))
        ones = np.ones(space.shape, dtype=space.dtype)
        self.bounds = (space.minimum, space.maximum) if bounded else (-ones, ones)

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation.

        Raises:
            NotFinite: when the simulation blows up.
        """
        try:
            with self._physics.reset_context():
                self._task.initialize_episode(self._physics)
        except self._physics_error as error:
            raise NotFinite(f"env '{self._name}' at a reset: {error}") from error
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Run one control step; raises as `reset` does."""
        try:
            self._task.before_step(action, self._physics)
            self._physics.step(self._substeps)
            self._task.after_step(self._physics)
        except self._physics_error as error:
            raise NotFinite(f"env '{self._name}': {error}") from error
        reward = float(self._task.get_reward(self._physics))
        # The suite ends an episode by returning its last discount, which is 0 wherever it does.
        terminated = self._task.get_termination(self._physics) is not None
        return self._observe(), reward, terminated, False

    def _observe(self) -> np.ndarray:
        return self.read(self._task.get_observation(self._physics))

    def read(self, obs: Any) -> np.ndarray:
        """Return the entries of an observation, one after the other."""
        return np.concatenate([np.ravel(entry) for entry in obs.values()])

    def render(self) -> np.ndarray:
        """Return the first camera's picture, (240, 320, 3)."""
        return self.picture(240, 320, 0)

    def picture(self, height: int, width: int, camera: int) -> np.ndarray:
        """Return a camera's picture, uint8 (height, width, 3).

        Raises:
            MissingPackage: when there is no OpenGL to draw it with.
        """
        physics = self._physics
        try:
            if physics._contexts is None:
                _import_renderer()
                type(physics)._make_rendering_contexts(physics)
            gl = physics.contexts.gl
            with gl.make_current() as context:
                # Something outside of dm_control may have drawn since, which it cannot know.
                context.call(gl._platform_make_current)
            return physics.render(height=height, width=width, camera_id=camera)
        except (AttributeError, ImportError, RuntimeError) as error:
            raise cannot_draw(error) from error

    def state_dict(self) -> State:
        """Return the simulation's arrays, the edited ones of its model and the task's members."""
        stream = self._random.get_state(legacy=False)
        return {
            "physics": self._data.read(),
            "model": {name: array.copy() for name, array in self._edited.items()},
            "task": {k: plain(v) for k, v in vars(self._task).items() if k != "_random"},
            "normal": {name: stream[name] for name in ("has_gauss", "gauss")},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken; see `MjDataState.write`."""
        model, data = self._physics.model.ptr, self._physics.data.ptr
        for name, array in self._edited.items():
            array[...] = state["model"][name]
        self._data.write(state["physics"])
        # The suite's step starts in the middle of MuJoCo's, with the contacts and constraints
        # that the previous one found: find them again, then put back what that overwrites.
        self._mujoco.mj_fwdPosition(model, data)
        self._mujoco.mj_fwdVelocity(model, data)
        self._data.write(state["physics"])
        self._task.__dict__ = {**plain(state["task"]), "_random": self._random}
        self._random.set_state({**self._random.get_state(legacy=False), **state["normal"]})
        if self._physics.contexts is not None:
            self._physics._free_rendering_contexts()  # it holds a copy of the terrain

    def close(self) -> None:
        """Free what the simulator holds."""
        self._physics.free()


class _Pictures(ControlSimulator):
    """A task observed in pictures, uint8 (3, size, size), drawn once per step of the agent."""

    task: DmcTask

    def __init__(self, task: DmcTask, options: dict[str, Any]) -> None:
        super().__init__(task, options, _TASK_LIMIT)
        self._size = options["pixels"]

    def observed(self, obs: np.ndarray) -> np.ndarray:
        camera = _CAMERAS.get(self.task.domain, 0)
        picture = self.task.picture(self._size, self._size, camera)
        return np.ascontiguousarray(picture.transpose(2, 0, 1))

    def read(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)


def _import_suite() -> ModuleType:
    """Import the suite without OpenGL, which dm_control would look for and may fail to find."""
    require("mujoco", _INSTALL)  # it reads MUJOCO_GL too
    require("dm_control", _INSTALL)
    chosen = "MUJOCO_GL" in os.environ
    if chosen:
        compiler_first()
    else:
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        return importlib.import_module("dm_control.suite")
    finally:
        if not chosen:
            del os.environ["MUJOCO_GL"]


def _import_renderer() -> None:
    """Let dm_control look for OpenGL where `_import_suite` prevented it."""
    choose_gl()
    renderer = importlib.import_module("dm_control._render")
    if renderer.BACKEND in renderer.constants.NO_RENDERER:
        importlib.reload(renderer)


def _options(_: str) -> dict[str, Option]:
    return {
        **control_options(_TASK_LIMIT, "gravity", "friction"),
        "pixels": count(None, "numbers, no pictures"),
        "frame_stack": count(None, f"{_FRAMES} pictures"),
    }


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    spec = control_spec(env_id, *_SIZES[env_id], _TASK_LIMIT, options)
    pixels, frames = options["pixels"], options["frame_stack"]
    if pixels is None:
        if frames is not None:
            raise ValueError(
                f"option 'frame_stack' of env '{env_id}' is {frames}: it stacks pictures, give "
                "'pixels' too"
            )
        return spec
    if pixels > _MOST_PIXELS:
        raise ValueError(
            f"option 'pixels' of env '{env_id}' is {pixels}: allowed is [1, {_MOST_PIXELS}]"
        )
    shape, stack = (3, pixels, pixels), frames or _FRAMES
    pictures = {"obs_dtype": "uint8", "obs_scale": 1 / 255, "repeat_first": True}
    return replace(spec, obs_shape=shape, frame_stack=stack, **pictures)


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    domain, name = env_id.removeprefix("dmc/").split("-")
    task = DmcTask(domain, name, rng, options["gravity"], options["friction"])
    if options["pixels"] is None:
        return ControlSimulator(task, options, _TASK_LIMIT)
    return _Pictures(task, options)


FAMILY = Family(
    ids={
        env_id: "dm_control "
        + env_id.removeprefix("dmc/").replace("_", " ").replace("-", ", ")
        + f": {obs_size} numbers, {action_dim} continuous actions"
        for env_id, (obs_size, action_dim) in _SIZES.items()
    },
    source="Tassa et al. 2018, arXiv:1801.00690",
    options=_options,
    spec=_spec,
    make=_make,
)
