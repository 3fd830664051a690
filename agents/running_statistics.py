"""Running statistics of observations and returns, to normalise what networks see and learn.

Source: parallel variance of Chan, Golub & LeVeque 1979; used as in SimBa (Lee et al. 2025), SimbaV2
(arXiv:2502.15280, Section 4.3) and ``VecNormalize`` of Stable-Baselines3. Unlike there, statistics
here know the last observations of truncated episodes, which critics value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlplast.core.device import on_device

__all__ = ["LIMIT", "ReturnScale", "RewardScale", "RunningStatistics"]

EPS = 1e-8  # added to the variance
LIMIT = 10.0  # of what is normalised, as in VecNormalize: rare entries would be huge


class RunningStatistics:
    """Mean and variance per entry of everything seen so far, in float64.

    SimBa's code starts from one ten-thousandth of a made-up observation with mean 0 and variance 1;
    here the statistics are exactly those of the data.

    Attributes:
        mean: float32 `[*shape]` on the device, always the same tensor; 0 before any update.
        inv_std: 1/√(variance + 1e-8), likewise; 1 before any update.
        count: observations seen.
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
        mean = np.add.reduce(batch, axis=0) / n  # as np.mean, in a third of the time
        delta = mean - self._mean
        squares = np.add.reduce(np.square(batch - mean), axis=0) + self.count * self._variance
        self._variance = (squares + np.square(delta) * (self.count * n / total)) / total
        self._mean = self._mean + delta * (n / total)
        self.count = total
        self._refresh()

    def normalise(self, obs: Tensor) -> Tensor:
        """Return (obs − mean)/√(variance + 1e-8) within ±`LIMIT`, float32 `[..., *shape]`.

        Reads static tensors only, so that it can be compiled or captured.
        """
        return ((obs.float() - self.mean) * self.inv_std).clamp(-LIMIT, LIMIT)

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


class ReturnScale:
    """What rewards are multiplied by, so that discounted returns vary by about 1 and are bounded.

    The discounted return of an environment is G ← γ·(1 − ended)·G + r. Rewards are divided by
    max(√(Var G + 1e-8), max|G| / bound). As in SimbaV2's code, G begins anew with the reward that
    ends an episode; unlike there, statistics begin with the data (see `RunningStatistics`).

    Attributes:
        factor: float32, 0 dimensions, on the device, always the same tensor; 1 before any update.
    """

    def __init__(
        self, num_envs: int, gamma: float, bound: float, device: torch.device | str = "cpu"
    ) -> None:
        self.gamma, self.bound = gamma, bound
        self.factor = torch.ones((), device=device)
        self._returns, self._largest = np.zeros(num_envs), 0.0
        self._statistics = RunningStatistics(())

    def restart(self) -> None:
        """Forget everything seen; `factor` stays the same tensor."""
        new = ReturnScale(len(self._returns), self.gamma, self.bound)
        self.load_state_dict(new.state_dict())

    def cut(self) -> None:
        """Begin all returns anew, as where a task ends."""
        self._returns = np.zeros_like(self._returns)

    def update(self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
        """Take in rewards of a step, and which episodes it ended, `[num_envs]`."""
        self._returns = self.gamma * ~ended * self._returns + reward.astype(np.float64)
        self._statistics.update(self._returns)
        self._largest = max(self._largest, float(np.abs(self._returns).max()))
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the open returns, the largest one, and their statistics; copies."""
        return {
            "returns": self._returns.copy(),
            "largest": self._largest,
            "statistics": self._statistics.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `factor` stays the same tensor."""
        self._returns = np.array(state["returns"], np.float64)
        self._largest = float(state["largest"])
        self._statistics.load_state_dict(state["statistics"])
        self._refresh()

    def _refresh(self) -> None:
        divisor = 1.0
        if self._statistics.count:
            deviation = float(np.sqrt(self._statistics._variance + EPS))
            divisor = max(deviation, self._largest / self.bound)
        self.factor.copy_(on_device(np.asarray(1 / divisor, np.float32), self.factor.device))


class RewardScale:
    """Divides rewards by the standard deviation of their discounted sum within an episode.

    Attributes:
        statistics: of the sums after every step.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma, self.statistics = gamma, RunningStatistics(())
        self._sums = np.zeros(num_envs)

    def begin(self) -> None:
        """Begin new episodes everywhere; the statistics stay."""
        self._sums[:] = 0

    def scaled(self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Take in rewards of a step, (num_envs,), and return them scaled, float32, not clipped."""
        self._sums = self._sums * self.gamma + reward
        self.statistics.update(self._sums)
        self._sums[ended] = 0
        return (reward * self.statistics.inv_std.item()).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return statistics and sums; copies."""
        return {"statistics": self.statistics.state_dict(), "sums": self._sums.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.statistics.load_state_dict(state["statistics"])
        self._sums = np.array(state["sums"], np.float64)
