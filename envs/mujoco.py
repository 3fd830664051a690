"""Gymnasium's MuJoCo tasks, version 5, with exact state.

Todorov et al. 2012, doi:10.1109/IROS.2012.6386109; Towers et al. 2024, arXiv:2407.17032.
Observations are float32 vectors, actions are in [−1, 1] and rescaled to the task's own bounds.

Options: those of `rlplast.envs.control`. Where `terminate` is off a robot that has fallen lies on
until the limit. A simulation that blows up is reset by MuJoCo itself within the step, as in
Gymnasium.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, EpisodicEnv, State, plain, require
from rlplast.envs.control import control_env, control_options, control_spec
from rlplast.envs.gl import cannot_draw, choose_gl
from rlplast.envs.mjdata import MjDataState, quiet
from rlplast.envs.options import Family, Option

__all__ = ["FAMILY", "MujocoTask"]

_INSTALL = "rlplast[mujoco]"


@dataclass(frozen=True)
class _Task:
    """A task: its sizes, its limit, and the attributes beside mjData that an episode changes."""

    obs_size: int
    action_dim: int
    max_episode_steps: int = 1000
    state_names: tuple[str, ...] = ()


_TASKS = {
    "Ant-v5": _Task(105, 8),
    "HalfCheetah-v5": _Task(17, 6),
    "Hopper-v5": _Task(11, 3),
    "Humanoid-v5": _Task(348, 17),
    "HumanoidStandup-v5": _Task(348, 17),
    "InvertedDoublePendulum-v5": _Task(9, 1),
    "InvertedPendulum-v5": _Task(4, 1),
    "Pusher-v5": _Task(23, 7, 100, ("goal_pos", "cylinder_pos", "init_qpos")),
    "Reacher-v5": _Task(10, 2, 50, ("goal",)),
    "Swimmer-v5": _Task(8, 2),
    "Walker2d-v5": _Task(17, 6),
}


class MujocoTask:
    """One task, one control step at a time; a `ControlTask`."""

    def __init__(self, name: str, rng: np.random.Generator, state_names: tuple[str, ...]) -> None:
        """Build a task without wrappers that draws from `rng`.

        Raises:
            MissingPackage: when mujoco or a package it is drawn with is not installed.
        """
        gymnasium = require("gymnasium", "gymnasium")
        mujoco = require("mujoco", _INSTALL)
        require("imageio", _INSTALL)  # Gymnasium's renderer imports it
        self._drawing_errors = (AttributeError, ImportError, RuntimeError, mujoco.FatalError)
        with quiet(mujoco):
            made = gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True)
        self._task = made.unwrapped
        # The task draws from our generator itself, so there is no second stream to seed or save.
        self._task.np_random = rng
        self._state_names = state_names
        self._physics = MjDataState(self._task.data)
        space = self._task.action_space
        self.bounds = (space.low, space.high)

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        obs, _ = self._task.reset()
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Run one control step; the step limit is not the task's."""
        obs_next, reward, terminated, _, _ = self._task.step(action)
        return obs_next, float(reward), bool(terminated)

    def render(self) -> np.ndarray:
        """Return the picture, (480, 480, 3).

        Raises:
            MissingPackage: when there is no OpenGL to draw it with.
        """
        choose_gl()
        renderer = self._task.mujoco_renderer
        try:
            if renderer.viewer is not None:
                # Another environment of this process may have drawn since.
                renderer.viewer.make_context_current()
            return renderer.render("rgb_array")
        except self._drawing_errors as error:
            raise cannot_draw(error) from error

    def state_dict(self) -> State:
        """Return the simulation's arrays and the task's own attributes, None before a reset."""
        own = {name: plain(getattr(self._task, name, None)) for name in self._state_names}
        return {"physics": self._physics.read(), "task": own}

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken.

        Raises:
            ValueError: when it is of another version of MuJoCo.
        """
        self._physics.write(state["physics"])
        for name in self._state_names:
            setattr(self._task, name, plain(state["task"][name]))

    def close(self) -> None:
        """Free what drawing may have opened."""
        self._task.close()


def _name(env_id: str) -> str:
    return env_id.removeprefix("gym/")


def _options(env_id: str) -> dict[str, Option]:
    return control_options(_TASKS[_name(env_id)].max_episode_steps)


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = _TASKS[_name(env_id)]
    return control_spec(env_id, task.obs_size, task.action_dim, task.max_episode_steps, options)


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> EpisodicEnv:
    name = _name(env_id)
    task = MujocoTask(name, rng, _TASKS[name].state_names)
    return control_env(_spec(env_id, options), task, rng, options)


def _summary(env_id: str) -> str:
    task = _TASKS[_name(env_id)]
    return (
        f"Gymnasium {_name(env_id)} (MuJoCo): {task.obs_size} numbers, "
        f"{task.action_dim} continuous actions"
    )


FAMILY = Family(
    ids=tuple(f"gym/{name}" for name in _TASKS),
    options=_options,
    summary=_summary,
    source="Todorov et al. 2012, doi:10.1109/IROS.2012.6386109",
    spec=_spec,
    make=_make,
)
