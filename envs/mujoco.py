"""Gymnasium's MuJoCo tasks, version 5, with exact state.

Todorov et al. 2012, doi:10.1109/IROS.2012.6386109; Towers et al. 2024, arXiv:2407.17032.
Options: those of `rlplast.envs.control`; `gravity` and `friction` multiply the constants of the
model. With `terminate` off a robot that has fallen lies on until the limit. A simulation that blows
up is reset by MuJoCo itself within the step, as in Gymnasium.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator, State, require
from rlplast.envs.classic import GymTask
from rlplast.envs.control import ControlSimulator, control_options, control_spec
from rlplast.envs.gl import draw
from rlplast.envs.mjdata import MjDataState, multiply, quiet
from rlplast.envs.options import Family

__all__ = ["FAMILY"]

_INSTALL = "rlplast[mujoco]"


@dataclass(frozen=True)
class _Task:
    """A task: its sizes, its limit, and the attributes beside mjData that an episode changes."""

    obs_size: int
    action_dim: int
    max_episode_steps: int = 1000
    state_names: tuple[str, ...] = ()


_TASKS = {
    "gym/Ant-v5": _Task(105, 8),
    "gym/HalfCheetah-v5": _Task(17, 6),
    "gym/Hopper-v5": _Task(11, 3),
    "gym/Humanoid-v5": _Task(348, 17),
    "gym/HumanoidStandup-v5": _Task(348, 17),
    "gym/InvertedDoublePendulum-v5": _Task(9, 1),
    "gym/InvertedPendulum-v5": _Task(4, 1),
    "gym/Pusher-v5": _Task(23, 7, 100, ("goal_pos", "cylinder_pos", "init_qpos")),
    "gym/Reacher-v5": _Task(10, 2, 50, ("goal",)),
    "gym/Swimmer-v5": _Task(8, 2),
    "gym/Walker2d-v5": _Task(17, 6),
}


class _MujocoTask(GymTask):
    """One task; two factors change its model."""

    def __init__(
        self,
        name: str,
        rng: np.random.Generator,
        state_names: tuple[str, ...],
        gravity: float = 1.0,
        friction: float = 1.0,
    ) -> None:
        mujoco = require("mujoco", _INSTALL)
        require("imageio", _INSTALL)  # Gymnasium's renderer imports it
        with quiet(mujoco):
            super().__init__(name, rng, state_names)
        multiply(self._task.model, gravity, friction)
        self._physics = MjDataState(self._task.data)

    def render(self) -> np.ndarray:
        return draw(self._task.mujoco_renderer)

    def state_dict(self) -> State:
        return {"physics": self._physics.read(), "task": super().state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._physics.write(state["physics"])
        super().load_state_dict(state["task"])


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    task = _TASKS[env_id]
    return control_spec(env_id, task.obs_size, task.action_dim, task.max_episode_steps, options)


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    name, task = env_id.removeprefix("gym/"), _TASKS[env_id]
    constants = options["gravity"], options["friction"]
    made = _MujocoTask(name, rng, task.state_names, *constants)
    return ControlSimulator(made, options, task.max_episode_steps)


FAMILY = Family(
    ids={
        env_id: f"Gymnasium {env_id.removeprefix('gym/')} (MuJoCo): {task.obs_size} numbers, "
        f"{task.action_dim} continuous actions"
        for env_id, task in _TASKS.items()
    },
    source="Todorov et al. 2012, doi:10.1109/IROS.2012.6386109",
    options=lambda env_id: control_options(_TASKS[env_id].max_episode_steps, "gravity", "friction"),
    spec=_spec,
    make=_make,
)
