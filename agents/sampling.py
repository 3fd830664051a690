"""How often a replay draws each of its transitions."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rlplast.core.registry import build, register
from rlplast.core.validation import Section

__all__ = ["SampleWeightDecay", "SamplingConfig", "sampling_of"]


@register("replay", "sample_weight_decay", source="arXiv:2604.01913; its code, ReplayBuffer.py")
@dataclass(frozen=True)
class SampleWeightDecay:
    """Draw a transition less often the older it is: w = max(min, 1 − age/decay).

    The age is in env_steps since the transition was stored, and follows from its place in the ring.
    Draws are with replacement, and losses are not corrected for them. Probes of metrics and hooks
    stay uniform (ours).

    Attributes:
        decay: age in env_steps at which the linear weight would be 0.
        min: the smallest weight.
    """

    decay: Annotated[int, Field(ge=1, le=1_000_000_000_000)] = 80_000
    min: Annotated[float, Field(gt=0, le=1)] = 0.1

    def totals(self, rows: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.float64]:
        """Return the sum of the weights of the newest `rows` rows, `step` env_steps apart."""
        falling = np.minimum(rows, self._falling(step))
        return self._sum(falling, step) + self.min * (rows - falling)

    def rows_at(
        self, value: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], step: int
    ) -> npt.NDArray[np.int64]:
        """Return which row, 0 the newest, a point of [0, `totals`) falls on.

        The running sum of the weights is a parabola, then a line, and is inverted in closed form.
        """
        falling, fall = np.minimum(rows, self._falling(step)), step / self.decay
        begins = 1 + fall / 2
        root = np.sqrt(np.maximum(begins**2 - 2 * fall * value, 0))
        young = np.clip(np.floor(2 * value / (begins + root)), 0, falling - 1)
        rest = value - self._sum(falling, step)
        old = np.clip(falling + np.floor(rest / self.min), falling, rows - 1)
        return np.where(rest < 0, young, old).astype(np.int64)

    def _falling(self, step: int) -> int:
        """Return how many rows are too young for the smallest weight, or just old enough."""
        return math.floor((1 - self.min) * self.decay / step) + 1

    def _sum(self, rows: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.float64]:
        """Return the sum of the linear weights of the newest rows."""
        return rows - step / self.decay * (rows * (rows - 1) / 2)


@dataclass
class SamplingConfig(Section):
    """The key ``agent.sampling``.

    Attributes:
        method: one of ``rlplast list replay``.
        params: its parameters.
    """

    method: str
    params: dict[str, Any] | None = None


def sampling_of(config: SamplingConfig | None) -> SampleWeightDecay | None:
    """Return what ``agent.sampling`` of a config asks for; None for uniform draws."""
    return None if config is None else build("replay", config.method, config.params)
