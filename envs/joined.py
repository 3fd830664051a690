"""Environments of several tasks as one agent sees them: one space of observations and actions."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rlplast.envs.base import EnvSpec, State
from rlplast.envs.shifts import Shift
from rlplast.envs.vector import VectorEnv, VectorStep

__all__ = ["TaskVector", "join_specs"]

_SAME = ("obs_dtype", "frame_stack", "obs_scale", "clip_rewards", "repeat_first")


def join_specs(specs: Sequence[EnvSpec]) -> EnvSpec:
    """Return the union of the spaces of environments: the widest observations, all actions.

    What only one environment has, such as its step limit, is that of the first.

    Raises:
        ValueError: naming the first environment and one that does not go with it.
    """
    first = specs[0]
    for other in specs[1:]:
        problem = _problem(first, other)
        if problem:
            raise ValueError(f"envs '{first.id}' and '{other.id}' cannot be joined: {problem}")
    shape = (max(s.obs_shape[0] for s in specs), *first.obs_shape[1:])
    num_actions = max(s.num_actions or 0 for s in specs) or None
    action_dim = max(s.action_dim or 0 for s in specs) or None
    ids = "+".join(dict.fromkeys(s.id for s in specs))
    return dataclasses.replace(
        first,
        id=ids,
        obs_shape=shape,
        num_actions=num_actions,
        action_dim=action_dim,
        changes=any(s.changes for s in specs),
        tried=any(s.tried for s in specs),
    )


def _problem(one: EnvSpec, other: EnvSpec) -> str:
    """Say what keeps two environments apart; empty if nothing does."""
    if (one.num_actions is None) != (other.num_actions is None):
        return "the actions of one are integers, those of the other vectors"
    a, b = one.obs_shape, other.obs_shape
    # Only coordinates and channels can be filled up with zeros.
    fixed = slice(0, None) if len(a) == 2 else slice(1, None)
    if len(a) != len(b) or a[fixed] != b[fixed]:
        return f"shapes {a} and {b} of observations; allowed are vectors, or pictures of one size"
    for name in _SAME:
        if getattr(one, name) != getattr(other, name):
            return f"their {name} is {getattr(one, name)} and {getattr(other, name)}"
    return ""


class TaskVector:
    """Environments as a task shows them; used as a `VectorEnv` is.

    Coordinates or channels that the environment lacks are zero. Actions it lacks are action 0, and
    further entries of vectors are ignored. Late actions come after those of action 0 or zeros, with
    which every episode begins.

    Attributes:
        spec: the joined description, with the environment's own bar of success.
    """

    def __init__(self, env: VectorEnv, spec: EnvSpec, shift: Shift) -> None:
        self._env, self._shift = env, shift
        own = env.spec
        self.spec = dataclasses.replace(spec, success_return=own.success_return, tried=own.tried)
        size = env.spec.action_dim
        one, kind = ((), np.int64) if size is None else ((size,), np.float32)
        self._late = np.zeros((shift.delay, env.num_envs, *one), kind)  # the next one first
        self.render, self.close = env.render, env.close
        self.learned, self.take_over = env.learned, env.take_over

    @property
    def restarts(self) -> bool:
        """Whether a state was loaded from which not all episodes go on."""
        return self._env.restarts

    @property
    def restart_reason(self) -> str:
        """What the first environment says that cannot go on."""
        return self._env.restart_reason

    def reset(self) -> np.ndarray:
        """Start an episode everywhere and return (N, *obs_shape)."""
        self._late[:] = 0
        return self._seen(self._env.reset())

    def step(self, actions: np.ndarray) -> VectorStep:
        """Step every environment, as `VectorEnv.step` does."""
        step = self._env.step(self._done(actions))
        ended = step.terminated | step.truncated
        self._late[:, ended] = 0
        obs = self._seen(step.obs)
        final = self._seen(step.obs_final) if ended.any() else obs
        return dataclasses.replace(step, obs=obs, obs_final=final)

    def _seen(self, obs: np.ndarray) -> np.ndarray:
        obs = self._shift.seen(obs)
        missing = self.spec.obs_shape[0] - obs.shape[1]
        if not missing:
            return obs
        return np.pad(obs, [(0, 0), (0, missing), *[(0, 0)] * (obs.ndim - 2)])

    def _done(self, actions: np.ndarray) -> np.ndarray:
        spec = self._env.spec
        if spec.num_actions is None:
            actions = actions[:, : spec.action_dim] * np.float32(self._shift.scale)
        else:
            actions = np.where(actions < spec.num_actions, actions, 0)
        if not self._shift.delay:
            return actions
        now = self._late[0].copy()
        self._late[:-1] = self._late[1:]
        self._late[-1] = actions
        return now

    def state_dict(self, level: str = "exact") -> State:
        """Return everything that decides the future, as `VectorEnv.state_dict` does."""
        return {"env": self._env.state_dict(level), "late": self._late.copy()}

    def load_state_dict(
        self, state: State, rngs: Sequence[np.random.Generator] | None = None
    ) -> None:
        """Continue where `state` was taken, as `VectorEnv.load_state_dict` does."""
        self._env.load_state_dict(state["env"], rngs)
        self._late[:] = state["late"]
