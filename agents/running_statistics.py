"""Running mean and variance of observations, to normalise what networks see.

Source: parallel variance of Chan, Golub & LeVeque 1979; used as in SimBa (Lee et al. 2025),
which updates it with every observation acted on and applies it when acting and sampling.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError

__all__ = ["RunningStatistics"]

EPS = 1e-8  # added to the variance


class RunningStatistics:
    """Mean and variance per entry of everything seen so far, in float64.

    SimBa's code starts from one ten-thousandth of a made-up observation with mean 0 and
    variance 1; here the statistics are exactly those of the data.

    Attributes:
        mean: float32 `[*shape]` on the device, always the same tensor; 0 before any update.
        inv_std: 1/√(variance + 1e-8), likewise; 1 before any update.
        count: observations seen.

    Args:
        shape: shape of one observation.
        device: where `normalise` runs.

    Examples:
        >>> statistics = RunningStatistics((1,))
        >>> statistics.update(np.array([[1.0], [3.0]]))
        >>> statistics.normalise(torch.tensor([[1.0], [2.0], [4.0]])).flatten()
        tensor([-1.,  0.,  2.])
    """

    def __init__(self, shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.count = 0
        self._mean, self._variance = np.zeros(shape), np.ones(shape)
        self.mean = torch.zeros(tuple(shape), device=device)
        self.inv_std = torch.ones(tuple(shape), device=device)

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Take in n observations; nothing is clipped.

        Args:
            batch: `[n, *shape]`.

        Raises:
            ConfigError: if the batch has another shape.
        """
        if batch.shape[1:] != self._mean.shape or batch.ndim != self._mean.ndim + 1:
            raise ConfigError(
                f"running statistics got a batch of shape {batch.shape}: "
                f"allowed is (n, {', '.join(map(str, self._mean.shape))})"
            )
        n = len(batch)
        if n == 0:
            return
        total = self.count + n
        batch = batch.astype(np.float64)
        mean = batch.mean(axis=0)
        delta = mean - self._mean
        squares = np.square(batch - mean).sum(axis=0) + self.count * self._variance
        self._variance = (squares + np.square(delta) * (self.count * n / total)) / total
        self._mean = self._mean + delta * (n / total)
        self.count = total
        self._refresh()

    def normalise(self, obs: Tensor) -> Tensor:
        """Return (obs − mean)/√(variance + 1e-8) in float32.

        Reads static tensors only, so that it can be compiled or captured.

        Args:
            obs: `[..., *shape]`, on the device.
        """
        return (obs.float() - self.mean) * self.inv_std

    def state_dict(self) -> dict[str, Any]:
        """Return count, mean and variance; copies."""
        return {
            "count": self.count,
            "mean": self._mean.copy(),
            "variance": self._variance.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `mean` and `inv_std` stay the same tensors.

        Raises:
            ConfigError: if it is of observations of another shape.
        """
        for key in ("mean", "variance"):
            if np.shape(state[key]) != self._mean.shape:
                raise ConfigError(
                    f"running statistics: saved {key} has shape {np.shape(state[key])}, "
                    f"observations have {self._mean.shape}; resume with the environment it was "
                    "saved with"
                )
        self.count = int(state["count"])
        self._mean = np.array(state["mean"], np.float64)
        self._variance = np.array(state["variance"], np.float64)
        self._refresh()

    def _refresh(self) -> None:
        self.mean.copy_(torch.as_tensor(self._mean))
        self.inv_std.copy_(torch.as_tensor(1 / np.sqrt(self._variance + EPS)))
