"""Actions for observations in the form of the environment itself."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlplast import envs
from rlplast.core.errors import ConfigError, shortened

__all__ = ["NativeEnv"]


class NativeEnv:
    """An environment in whose own form an agent is asked."""

    def __init__(self, env_id: str, options: Mapping[str, Any]) -> None:
        self._env = envs.make(env_id, np.random.default_rng(0), **options)
        self._simulator = self._env.simulator

    @property
    def is_there(self) -> bool:
        """Whether a single observation of its own says what the agent sees."""
        return self._env.spec.frame_stack == 1

    def act(self, act: Callable[[np.ndarray], np.ndarray], obs: Any) -> Any:
        """Return the action for an observation; of several an array of actions.

        `act` returns the agent's actions for observations (batch, …) as it sees them. Several are a
        list of
        observations of the environment, or have a batch axis first, in each entry of a Dict or
        Tuple.

        Raises:
            ConfigError: for what is no observation of it.
        """
        try:
            return self._simulator.native(act(self._read(obs)[None])[0])
        except (envs.EnvFailed, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
        try:
            seen = np.stack([self._read(row) for row in _rows(obs)])
        except (envs.EnvFailed, ValueError, TypeError, AttributeError) as error:
            spec = self._env.spec
            raise ConfigError(
                f"obs = {shortened(obs)}: allowed is what env '{spec.id}' returns, of finite "
                f"numbers, which the agent sees as {spec.obs_dtype} of shape {spec.obs_shape}, or "
                "several in a batch"
            ) from error
        return np.array([self._simulator.native(action) for action in act(seen)])

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _read(self, obs: Any) -> np.ndarray:
        seen, spec = self._simulator.read(obs), self._env.spec
        if seen.shape != spec.obs_shape or not np.isfinite(seen).all():
            raise ValueError("is none, or not finite")
        own = seen.astype(spec.obs_dtype)
        if not np.allclose(own, seen):
            raise ValueError(f"is not of {spec.obs_dtype}")
        return own


def _rows(obs: Any) -> list[Any]:
    """Return the observations of a batch."""
    if isinstance(obs, Mapping):
        parts = [_rows(part) for part in obs.values()]
        return [dict(zip(obs, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(obs, tuple):
        return list(zip(*map(_rows, obs), strict=True))
    return list(obs)
