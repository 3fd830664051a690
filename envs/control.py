"""What all continuous-control families share: action repeat, rescaling and termination."""

from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator
from rlplast.envs.options import Option, count, factor, switch

__all__ = ["ControlSimulator", "ControlTask", "control_options", "control_spec"]


class ControlTask(Simulator):
    """A simulator of one control step at a time, whose actions have bounds of their own.

    Its observations are of any float dtype. With `terminate` off it is stepped on after its end.

    Attributes:
        bounds: finite lowest and highest actions, both (action_dim,), in the dtype `step` wants;
            None for a task whose actions are integers.
    """

    bounds: tuple[np.ndarray, np.ndarray] | None


class ControlSimulator(Simulator):
    """A task whose actions are in [−1, 1] and repeated; rewards of a step are summed."""

    obs_dtype = "float32"

    def __init__(self, task: ControlTask, options: dict[str, Any], task_limit: int | None) -> None:
        """Wrap a task under resolved `control_options`.

        `task_limit` is the task's own, in control steps: within a repeat too it ends the episode,
        unless ``max_episode_steps`` is given. Unless ``terminate``, terminations are ignored.
        """
        self.task = task
        self._repeat, self._terminate = options["action_repeat"], options["terminate"]
        self._limit = task_limit if options["max_episode_steps"] is None else None
        if task.bounds is not None:
            low, high = (np.asarray(bound, dtype=np.float64) for bound in task.bounds)
            self._middle, self._half = (high + low) / 2, (high - low) / 2
            self._dtype = task.bounds[0].dtype  # both bounds have it
        self.render, self.close = task.render, task.close
        self.state_dict, self.load_state_dict = task.state_dict, task.load_state_dict
        self.learned, self.take_over = task.learned, task.take_over

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        return self.observed(self.task.reset())

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Repeat an action; returns the last observation, the summed reward and the two ends."""
        most = self._repeat
        if self._limit is not None:
            most = min(most, self._limit - self.steps * self._repeat)
        action = self._rescaled(action)
        obs_next, total, terminated, truncated = self._control_step(action)
        frames = 1
        while not (terminated or truncated) and frames < most:
            obs_next, reward, terminated, truncated = self._control_step(action)
            total += reward
            frames += 1
        self.step_frames, self.success = frames, self.task.success
        return self.observed(obs_next), total, terminated, truncated

    def _rescaled(self, action: Any) -> Any:
        """Return an action within the task's own bounds; an integer stays as it is."""
        if self.task.bounds is None:
            return action
        # In float64 and from the middle, so that bounds of ±1 change no bit of the action.
        low, high = self.task.bounds
        return (self._middle + self._half * action).astype(self._dtype).clip(low, high)

    def _control_step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        obs_next, reward, terminated, truncated = self.task.step(action)
        return obs_next, float(reward), self._terminate and bool(terminated), bool(truncated)

    def observed(self, obs: np.ndarray) -> np.ndarray:
        """Return a copy as agents see it; what does not fit becomes infinite, and is refused."""
        with np.errstate(over="ignore"):
            return np.array(obs, dtype=self.obs_dtype)

    def read(self, obs: Any) -> np.ndarray:
        """Return what the agent sees of an observation in the environment's own form."""
        return self.observed(self.task.read(obs))

    def native(self, action: Any) -> Any:
        """Return an action of `step` in the environment's own form."""
        return self.task.native(self._rescaled(action))


def control_options(task_limit: int | None, *constants: str) -> dict[str, Option]:
    """Return the options that all these families share.

    Args:
        task_limit: control steps of the task's own episode; None for no limit.
        constants: what can be multiplied: gravity, friction.
    """
    limit = "no limit" if task_limit is None else f"{task_limit} control steps, rounded up"
    return {
        "action_repeat": count(1),
        "terminate": switch(True),
        "max_episode_steps": count(None, none_means=limit),
        **{name: factor() for name in constants},
    }


def control_spec(
    env_id: str,
    obs_size: int,
    action_dim: int | None,
    task_limit: int | None,
    options: dict[str, Any],
    **others: Any,
) -> EnvSpec:
    """Describe a task observed as a vector, under resolved `control_options`.

    The last step is shorter where the task's own limit is no multiple of a step. `others` are
    further attributes of `EnvSpec`.
    """
    limit, repeat = options["max_episode_steps"], options["action_repeat"]
    if limit is None and task_limit is not None:
        limit = -(-task_limit // repeat)
    shape = {"obs_shape": (obs_size,), "action_dim": action_dim}
    return EnvSpec(env_id, frames_per_step=repeat, max_episode_steps=limit, **shape | others)
