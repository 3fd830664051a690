"""HumanoidBench: a humanoid robot walks, balances and handles things; with exact state.

Sferrazza et al. 2024, arXiv:2403.10506. Ids are `humanoid_bench/<robot>-<task>-v0`, such as
`h1-walk` and `h1hand-push`. Observations are the float32 vectors the tasks give by default. Images
and touch are not offered, nor is the robot `h1touch`, which differs from `h1hand` by its touch
sensors only. An episode is a success from the return `spec.success_return`, the benchmark's bar.

Options: those of `rlplast.envs.control`. The benchmark's results are at `action_repeat` 1, FIRE's
at 2.

What the package leaves to chance, and how it is kept exact:

- Its tasks draw from NumPy's global generator as well as from their own: while an episode starts
  both are the environment's generator, and the global one is put back.
- The robot `g1` changes the heights that rewards of *all* robots refer to, for the whole process:
  each environment sets its own before it acts.
- Some tasks carry fields over to the next episode, and some edit their model: both are state.
- MuJoCo 3.1.6 leaves 21 files open whenever it reads a model for `h1`, so that a thousand would
  run out after some fifty evaluations: each is read once in a process and then copied.

It needs MuJoCo 3.1.6, and with it an installation of its own: scripts/install_humanoid_bench.sh.
"""

import copy
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from rlplast.envs.base import EnvSpec, MissingPackage, Simulator, State, plain
from rlplast.envs.control import ControlSimulator, ControlTask, control_options, control_spec
from rlplast.envs.gl import cannot_draw, choose_gl, draw
from rlplast.envs.mjdata import MjDataState
from rlplast.envs.options import Family

__all__ = ["FAMILY"]

_INSTALL = (
    "run `bash scripts/install_humanoid_bench.sh` in a checkout of this project and use the "
    "environment it makes"
)


@dataclass(frozen=True)
class _Robot:
    """A robot: its positions (it has one velocity less), its actuators and how they are driven."""

    positions: int
    action_dim: int
    control: str = "pos"


@dataclass(frozen=True)
class _Task:
    extra: int  # numbers observed beside the robot's own
    success_return: float  # the benchmark's bar
    max_episode_steps: int = 1000  # in control steps
    velocities: bool = True  # whether the robot's are observed


_ROBOTS = {
    "h1": _Robot(26, 19),
    "h1hand": _Robot(76, 61),
    "h1simplehand": _Robot(52, 45),
    "h1strong": _Robot(76, 61),
    "g1": _Robot(44, 37, "torque"),
}

_WHOLE_BODY = {
    "balance_hard": _Task(26, 800),
    "balance_simple": _Task(13, 800),
    "basketball": _Task(13, 1200, 500),
    "crawl": _Task(0, 700),
    "door": _Task(4, 600),
    "hurdle": _Task(0, 700),
    "maze": _Task(0, 1200),
    "package": _Task(22, 1500),
    "pole": _Task(0, 700),
    "push": _Task(12, 700, 500),
    "reach": _Task(6, 12000),
    "run": _Task(0, 700),
    "sit_hard": _Task(13, 750),
    "sit_simple": _Task(0, 750),
    "slide": _Task(0, 700),
    "stair": _Task(0, 700),
    "stand": _Task(0, 800),
    "truck": _Task(65, 3000),
    "walk": _Task(0, 700),
}
_HANDS = {
    "bookshelf_hard": _Task(157, 2000),
    "bookshelf_simple": _Task(157, 2000),
    "cabinet": _Task(62, 2500),
    "cube": _Task(30, 370, 500),
    "insert_normal": _Task(39, 350, 500),
    "insert_small": _Task(39, 350, 500),
    "kitchen": _Task(21, 4, 500, velocities=False),
    "powerlift": _Task(13, 800),
    "room": _Task(78, 400),
    "spoon": _Task(16, 650),
    "window": _Task(20, 650),
}
_HIGHBAR = _Task(0, 750)
# The tasks that have a model for the robot; the package registers others, which cannot be built.
_TASKS_OF = {
    "h1": {**_WHOLE_BODY, "highbar_simple": _HIGHBAR},
    "h1hand": _WHOLE_BODY | _HANDS,
    "h1simplehand": {"stand": _WHOLE_BODY["stand"]},
    "h1strong": {"highbar_hard": _HIGHBAR},
    # The package's truck task looks for a joint that g1 does not have, and fails at its first step.
    "g1": {name: task for name, task in (_WHOLE_BODY | _HANDS).items() if name != "truck"},
}
_TASKS = {
    f"humanoid_bench/{robot}-{name}-v0": (robot, name, task)
    for robot, tasks in _TASKS_OF.items()
    for name, task in tasks.items()
}

# Module variables of the tasks: for all robots but g1, and for g1.
_HEIGHTS = {"_STAND_HEIGHT": (1.65, 1.28), "_CRAWL_HEIGHT": (0.8, 0.6)}

# All that tasks write into a model: where goals and targets are, and colours.
_EDITED = ("body_pos", "body_quat", "geom_rgba")

# What a task holds beside its state.
_NOT_STATE = {"robot", "_env", "unwrapped"}


class _HumanoidBenchTask(ControlTask):
    """One robot at one task, one control step (0.02 s) at a time."""

    def __init__(self, robot: str, task: str, rng: np.random.Generator) -> None:
        env_class = _package()
        self._rng = rng
        control = _ROBOTS[robot].control
        with redirect_stdout(io.StringIO()):  # it prints what its defaults are
            self._env = env_class(robot=robot, task=task, control=control, render_mode=None)
        self._env.np_random = rng
        self._task = self._env.task
        self._module = vars(sys.modules[type(self._task).__module__])
        self._heights = {
            name: g1 if robot == "g1" else others
            for name, (others, g1) in _HEIGHTS.items()
            if name in self._module
        }
        self._physics = MjDataState(self._env.data)
        self.bounds = (self._env.action_space.low, self._env.action_space.high)

    def reset(self) -> np.ndarray:
        self._module.update(self._heights)
        with _global_draws_from(self._rng):
            obs, _ = self._env.reset()
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        # It draws nothing.
        self._module.update(self._heights)
        obs_next, reward, terminated, _, _ = self._env.step(action)
        return obs_next, float(reward), bool(terminated), False

    def render(self) -> np.ndarray:
        return draw(self._env.mujoco_renderer)

    def state_dict(self) -> State:
        model = self._env.model
        return {
            "physics": self._physics.read(),
            "model": {name: getattr(model, name).copy() for name in _EDITED},
            "task": {name: plain(value) for name, value in self._fields().items()},
            # Of the first position, which a task may switch off once an episode has started.
            "randomness": self._env.randomness,
        }

    def load_state_dict(self, state: State) -> None:
        self._physics.write(state["physics"])
        for name in _EDITED:
            getattr(self._env.model, name)[...] = state["model"][name]
        for name in self._fields():
            delattr(self._task, name)
        for name, value in state["task"].items():
            setattr(self._task, name, plain(value))
        self._env.randomness = state["randomness"]

    def _fields(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self._task).items() if name not in _NOT_STATE}

    def close(self) -> None:
        self._env.close()


@cache
def _package() -> Any:
    """Return the environment class, with each model read once."""
    choose_gl()
    try:
        mujoco = importlib.import_module("mujoco")
        package = importlib.import_module("humanoid_bench.env")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise MissingPackage(
            f"HumanoidBench cannot be imported, '{missing}' is not installed: {_INSTALL}"
        ) from error
    except (AttributeError, ImportError, RuntimeError) as error:
        # MuJoCo loads what MUJOCO_GL names when it is imported.
        raise cannot_draw(error) from error
    if tuple(int(part) for part in mujoco.__version__.split(".")[:3]) > (3, 2, 6):
        raise MissingPackage(
            f"HumanoidBench needs mujoco 3.1.6, installed is {mujoco.__version__}: {_INSTALL}"
        )
    models: dict[str, Any] = {}

    class Environment(package.HumanoidEnv):
        """A HumanoidBench environment whose model is a copy of one that is read once."""

        def _initialize_simulation(self) -> tuple[Any, Any]:
            if self.fullpath not in models:
                models[self.fullpath], _ = super()._initialize_simulation()
            model = copy.copy(models[self.fullpath])
            return model, mujoco.MjData(model)

    return Environment


@contextmanager
def _global_draws_from(rng: np.random.Generator) -> Iterator[None]:
    """Let NumPy's global functions draw from `rng`, and put the global generator back."""
    generator = get_bit_generator()
    state = np.random.get_state(legacy=False)  # has half of a pair of normals in it too
    set_bit_generator(rng.bit_generator)
    try:
        yield
    finally:
        set_bit_generator(generator)
        np.random.set_state(state)


def _sizes(env_id: str) -> tuple[int, int]:
    """Return how many numbers are observed and how many an action has."""
    robot_name, _, task = _TASKS[env_id]
    robot = _ROBOTS[robot_name]
    robot_size = 2 * robot.positions - 1 if task.velocities else robot.positions
    return robot_size + task.extra, robot.action_dim


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = _TASKS[env_id][2]
    bar = task.success_return
    return control_spec(
        env_id, *_sizes(env_id), task.max_episode_steps, options, success_return=bar
    )


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    robot, name, task = _TASKS[env_id]
    return ControlSimulator(_HumanoidBenchTask(robot, name, rng), options, task.max_episode_steps)


def _summary(env_id: str) -> str:
    robot, name, _ = _TASKS[env_id]
    obs_size, action_dim = _sizes(env_id)
    sizes = f"{obs_size} numbers, {action_dim} continuous actions"
    return f"HumanoidBench {name.replace('_', ' ')} with robot {robot}: {sizes}"


FAMILY = Family(
    ids={env_id: _summary(env_id) for env_id in _TASKS},
    source="Sferrazza et al. 2024, arXiv:2403.10506",
    options=lambda env_id: control_options(_TASKS[env_id][2].max_episode_steps),
    spec=_spec,
    make=_make,
)
