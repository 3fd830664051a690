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

from rlplast.core.device import on_device

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
    """

    def __init__(self, shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.count = 0
        self._mean, self._variance = np.zeros(shape), np.ones(shape)
        self.mean = torch.zeros(tuple(shape), device=device)
        self.inv_std = torch.ones(tuple(shape), device=device)

    def restart(self) -> None:
        """Forget everything seen; `mean` and `inv_std` stay the same tensors."""
        self.load_state_dict(RunningStatistics(self.mean.shape).state_dict())

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Take in n ≥ 1 observations, `[n, *shape]`; nothing is clipped."""
        n = len(batch)
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
        """Return (obs − mean)/√(variance + 1e-8) in float32, of `[..., *shape]` on the device.

        Reads static tensors only, so that it can be compiled or captured.
        """
        return (obs.float() - self.mean) * self.inv_std

    def state_dict(self) -> dict[str, Any]:
        """Return count, mean and variance; copies."""
        mean, variance = self._mean.copy(), self._variance.copy()
        return {"count": self.count, "mean": mean, "variance": variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `mean` and `inv_std` stay the same tensors."""
        self.count = int(state["count"])
        self._mean = np.array(state["mean"], np.float64)
        self._variance = np.array(state["variance"], np.float64)
        self._refresh()

    def _refresh(self) -> None:
        inv_std = 1 / np.sqrt(self._variance + EPS)
        for tensor, value in ((self.mean, self._mean), (self.inv_std, inv_std)):
            tensor.copy_(on_device(np.asarray(value, np.float32), tensor.device))
