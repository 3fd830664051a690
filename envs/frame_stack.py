"""The newest frames of environments, as agents see them."""

import numpy as np

from rlplast.envs.base import EnvSpec

__all__ = ["FrameStack"]


class FrameStack:
    """The newest frames of every environment, zeros before an episode's start.

    Args:
        num_envs: number of environments.
        spec: what they are: shape and type of a frame, and frames per observation.
    """

    def __init__(self, num_envs: int, spec: EnvSpec) -> None:
        self.frames = np.zeros((num_envs, spec.frame_stack, *spec.obs_shape), spec.obs_dtype)

    def push(self, obs: np.ndarray, first: np.ndarray | bool) -> None:
        """Append frames (num_envs, ...); `first` marks the environments that began anew."""
        self.frames[:, :-1] = self.frames[:, 1:].copy()
        self.frames[:, -1] = obs
        self.frames[:, :-1][np.broadcast_to(first, len(obs))] = 0

    def obs(self) -> np.ndarray:
        """Return observations (num_envs, frame_stack, ...), or without that axis if it is 1."""
        return self.frames if self.frames.shape[1] > 1 else self.frames[:, 0]
