"""The newest frames of environments, as agents see them."""

import numpy as np

from rlplast.envs.base import EnvSpec

__all__ = ["FrameStack"]


class FrameStack:
    """The newest frames of every environment.

    Before an episode's start they are zeros, or its first frame if the spec says `repeat_first`.
    """

    def __init__(self, num_envs: int, spec: EnvSpec) -> None:
        self.frames = np.zeros((num_envs, spec.frame_stack, *spec.obs_shape), spec.obs_dtype)
        self._repeat_first, self._shape = spec.repeat_first, spec.stacked_shape

    def push(self, obs: np.ndarray, first: np.ndarray | bool) -> None:
        """Append frames (num_envs, ...); `first` marks the environments that began anew."""
        self.frames[:, :-1] = self.frames[:, 1:].copy()
        self.frames[:, -1] = obs
        began = np.broadcast_to(first, len(obs))
        self.frames[:, :-1][began] = obs[began, None] if self._repeat_first else 0

    def after(self, obs: np.ndarray) -> np.ndarray:
        """Return observations as they would be with frames (num_envs, ...) appended."""
        frames = np.concatenate((self.frames[:, 1:], obs[:, None]), axis=1)
        return frames.reshape(len(frames), *self._shape)

    def obs(self) -> np.ndarray:
        """Return observations (num_envs, *stacked_shape); a view, which the next `push` changes."""
        return self.frames.reshape(len(self.frames), *self._shape)
