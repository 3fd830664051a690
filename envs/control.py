"""What all continuous-control families share: action repeat, rescaling and termination."""

from typing import Any, Protocol

import numpy as np

from rlplast.envs.base import EnvSpec, EpisodicEnv, Simulator
from rlplast.envs.border import Border
from rlplast.envs.options import Option, count, factor, switch

__all__ = [
    "ControlSimulator",
    "ControlTask",
    "PlainTask",
    "control_env",
    "control_options",
    "control_spec",
    "step_limit",
    "task_env",
]


class ControlTask(Simulator, Protocol):
    """A simulator of one control step at a time, whose actions have bounds of their own.

    Its observations are of any float dtype. With `terminate` off it is stepped on after its end.
    """

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Finite lowest and highest actions, both (action_dim,), in the dtype `step` wants.

        None for a task whose actions are integers.
        """
        ...

    def read(self, obs: Any) -> np.ndarray:
        """Return an observation of the environment that the task is made of, as `step` does."""
        ...

    def native(self, action: Any) -> Any:
        """Return an action that `step` takes as that environment takes it."""
        ...


class PlainTask:
    """A task that shows and takes what its environment does; one frame a step."""

    step_frames = 1

    def read(self, obs: Any) -> np.ndarray:
        """Return an observation: agents see it as it is."""
        return np.asarray(obs)

    def native(self, action: Any) -> Any:
        """Return an action: the environment takes it as it is."""
        return action


class ControlSimulator:
    """A task whose actions are in [−1, 1] and repeated; rewards of a step are summed.

    Attributes:
        most_frames: control steps that the next step has, if nothing ends it.
    """

    def __init__(
        self, task: ControlTask, action_repeat: int, terminate: bool, obs_dtype: str = "float32"
    ) -> None:
        """Wrap `task`; unless `terminate`, its terminations are ignored."""
        self._task, self.most_frames, self._terminate = task, action_repeat, terminate
        self._obs_dtype = obs_dtype
        self.step_frames = 0
        if task.bounds is not None:
            low, high = (np.asarray(bound, dtype=np.float64) for bound in task.bounds)
            self._middle, self._half = (high + low) / 2, (high - low) / 2
            self._dtype = task.bounds[0].dtype  # both bounds have it
        self.render, self.close = task.render, task.close
        self.state_dict, self.load_state_dict = task.state_dict, task.load_state_dict

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        return self.observed(self._task.reset())

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Repeat an action; returns the last observation, the summed reward and the two ends."""
        action = self.rescaled(action)
        obs_next, total, terminated, truncated = self._control_step(action)
        self.step_frames = 1
        while not (terminated or truncated) and self.step_frames < self.most_frames:
            obs_next, reward, terminated, truncated = self._control_step(action)
            total += reward
            self.step_frames += 1
        return self.observed(obs_next), total, terminated, truncated

    def rescaled(self, action: Any) -> Any:
        """Return an action within the task's own bounds; an integer stays as it is."""
        if self._task.bounds is None:
            return action
        # In float64 and from the middle, so that bounds of ±1 change no bit of the action.
        low, high = self._task.bounds
        return (self._middle + self._half * action).astype(self._dtype).clip(low, high)

    def _control_step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        obs_next, reward, terminated, truncated = self._task.step(action)
        return obs_next, float(reward), self._terminate and bool(terminated), bool(truncated)

    def observed(self, obs: np.ndarray) -> np.ndarray:
        """Return a copy as agents see it; what does not fit becomes infinite, and is refused."""
        with np.errstate(over="ignore"):
            return np.array(obs, dtype=self._obs_dtype)


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


def step_limit(options: dict[str, Any], task_limit: int | None) -> int | None:
    """Return an episode's limit in steps of the agent, under resolved `control_options`.

    The last of them is shorter where the task's own limit is no multiple of a step.

    Examples:
        >>> step_limit({"max_episode_steps": None, "action_repeat": 3}, 1000)
        334
    """
    chosen = options["max_episode_steps"]
    if chosen is not None or task_limit is None:
        return chosen
    return -(-task_limit // options["action_repeat"])


def control_spec(
    env_id: str,
    obs_size: int,
    action_dim: int | None,
    task_limit: int | None,
    options: dict[str, Any],
    success_return: float | None = None,
    num_actions: int | None = None,
) -> EnvSpec:
    """Describe a task observed as a vector, under resolved `control_options`."""
    return EnvSpec(
        id=env_id,
        obs_shape=(obs_size,),
        obs_dtype="float32",
        frame_stack=1,
        num_actions=num_actions,
        frames_per_step=options["action_repeat"],
        max_episode_steps=step_limit(options, task_limit),
        action_dim=action_dim,
        success_return=success_return,
    )


class _ControlEnv(EpisodicEnv):
    """An episode that ends at the task's own limit of control steps, within a repeat too."""

    def __init__(
        self, spec: EnvSpec, simulator: ControlSimulator, rng: np.random.Generator, limit: int
    ) -> None:
        super().__init__(spec, simulator, rng)
        self._control, self._limit = simulator, limit

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        repeat = self.spec.frames_per_step
        self._control.most_frames = min(repeat, self._limit - self._steps * repeat)
        return super().step(action)


def control_env(
    spec: EnvSpec,
    simulator: ControlSimulator,
    rng: np.random.Generator,
    options: dict[str, Any],
    task_limit: int | None,
) -> EpisodicEnv:
    """Build the environment around a simulator that draws from `rng`."""
    if task_limit is None or options["max_episode_steps"] is not None:
        return EpisodicEnv(spec, simulator, rng)
    return _ControlEnv(spec, simulator, rng, task_limit)


def task_env(
    spec: EnvSpec,
    task: ControlTask,
    rng: np.random.Generator,
    options: dict[str, Any],
    task_limit: int | None,
) -> EpisodicEnv:
    """Build the environment around a task that draws from `rng`."""
    repeat, terminate = options["action_repeat"], options["terminate"]
    simulator = ControlSimulator(task, repeat, terminate, spec.obs_dtype)
    env = control_env(spec, simulator, rng, options, task_limit)
    env.border = Border(
        lambda obs: simulator.observed(task.read(obs)),
        lambda action: task.native(simulator.rescaled(action)),
    )
    return env
