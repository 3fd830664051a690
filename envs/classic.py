"""Gymnasium's classic control tasks, with exact state (Towers et al. 2024, arXiv:2407.17032).

Observations are float32 vectors. Options: `max_episode_steps` until truncation, by default the
task's own; for continuous actions those of `rlplast.envs.control`; `gravity` multiplies the
constant of CartPole, MountainCar and Pendulum (the other two have it as a bare number).
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rlplast.envs.base import EnvSpec, MissingPackage, Simulator, State, plain
from rlplast.envs.control import ControlSimulator, ControlTask, control_options, control_spec
from rlplast.envs.options import Family, Option, count, factor

__all__ = ["FAMILY", "GymTask"]


@dataclass(frozen=True)
class _Task:
    """A task, and the attributes that are its whole state; `num_actions` None is one dimension."""

    obs_size: int
    num_actions: int | None
    max_episode_steps: int
    state_names: tuple[str, ...]
    gravity: str | None = None  # the attribute


_TASKS = {
    "gym/CartPole-v1": _Task(4, 2, 500, ("state", "steps_beyond_terminated"), "gravity"),
    "gym/Acrobot-v1": _Task(6, 3, 500, ("state",)),
    "gym/MountainCar-v0": _Task(2, 3, 200, ("state",), "gravity"),
    "gym/Pendulum-v1": _Task(3, None, 200, ("state", "last_u"), "g"),
    "gym/MountainCarContinuous-v0": _Task(2, None, 999, ("state",)),
}


class GymTask(ControlTask):
    """One task without wrappers; its attributes `state_names` are its state."""

    def __init__(self, name: str, rng: np.random.Generator, state_names: tuple[str, ...]) -> None:
        made = gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True)
        self._task: Any = made.unwrapped
        # The task draws from our generator itself, so there is no second stream to seed or save.
        self._task.np_random = rng
        self._state_names = state_names
        space = self._task.action_space
        self.bounds = (space.low, space.high) if hasattr(space, "low") else None

    def multiply(self, attribute: str, by: float) -> None:
        """Multiply a constant of the task."""
        setattr(self._task, attribute, getattr(self._task, attribute) * by)

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        obs, _ = self._task.reset()
        return obs

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Run one step of the task."""
        obs_next, reward, terminated, _, _ = self._task.step(action)
        return obs_next, float(reward), bool(terminated), False

    def render(self) -> np.ndarray:
        """Return the picture.

        Raises:
            MissingPackage: when pygame, which draws it, is not installed.
        """
        try:
            return self._task.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingPackage(
                "pictures of gym tasks need pygame: pip install 'rlplast[classic]'"
            ) from error

    def state_dict(self) -> State:
        """Return the task's state; before the first reset its members are None."""
        state = {name: getattr(self._task, name, None) for name in self._state_names}
        # A task may hold its state as an array, and after a step as a tuple of numbers.
        return {
            name: plain(np.array(value) if isinstance(value, tuple) else value)
            for name, value in state.items()
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the task's state."""
        for name in self._state_names:
            setattr(self._task, name, plain(state[name]))

    def close(self) -> None:
        """Close the window that rendering may have opened."""
        self._task.close()


def _options(env_id: str) -> dict[str, Option]:
    task = _TASKS[env_id]
    constants = () if task.gravity is None else ("gravity",)
    if task.num_actions is None:
        return control_options(task.max_episode_steps, *constants)
    limit = count(task.max_episode_steps, none_means="no limit")
    return {"max_episode_steps": limit, **{name: factor() for name in constants}}


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = _TASKS[env_id]
    if task.num_actions is None:
        return control_spec(env_id, task.obs_size, 1, task.max_episode_steps, options)
    limit = options["max_episode_steps"]
    return EnvSpec(env_id, (task.obs_size,), num_actions=task.num_actions, max_episode_steps=limit)


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    task = _TASKS[env_id]
    simulator = GymTask(env_id.removeprefix("gym/"), rng, task.state_names)
    if task.gravity is not None:
        simulator.multiply(task.gravity, options["gravity"])
    if task.num_actions is None:
        return ControlSimulator(simulator, options, task.max_episode_steps)
    return simulator


FAMILY = Family(
    ids={
        env_id: f"Gymnasium {env_id.removeprefix('gym/')}: {task.obs_size} numbers, "
        + (f"{task.num_actions} actions" if task.num_actions else "1 continuous action")
        for env_id, task in _TASKS.items()
    },
    source="Towers et al. 2024, arXiv:2407.17032",
    options=_options,
    spec=_spec,
    make=_make,
)
