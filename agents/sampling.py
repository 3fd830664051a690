"""How often a replay draws each of its transitions.

- `SampleWeightDecay`: the older, the less often.
- `sampling_of`: what a config asks for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlplast.core.errors import ConfigError, check_known, shortened
from rlplast.core.registry import build, param, register

__all__ = ["SampleWeightDecay", "sampling_of"]

KEY = "agent.sampling"


@register("replay", "sample_weight_decay", source="arXiv:2604.01913; its code, ReplayBuffer.py")
@dataclass(frozen=True)
class SampleWeightDecay:
    """Draw a transition less often the older it is: w = max(min, 1 − age/decay).

    The age is in env_steps since the transition was stored, and follows from its place in the
    ring. Draws are with replacement, and losses are not corrected for them. Probes of metrics and
    hooks stay uniform (ours). No weight, no optimizer state and no target is edited.

    Attributes:
        decay: age in env_steps at which the linear weight would be 0.
        min: the smallest weight.
    """

    decay: int = param(80_000, "[1, inf)")
    min: float = param(0.1, "(0, 1]")

    def totals(self, rows: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.float64]:
        """Return the sum of the weights of the newest `rows` rows, `step` env_steps apart."""
        falling = np.minimum(rows, self._falling(step))
        return self._sum(falling, step) + self.min * (rows - falling)

    def rows_at(
        self, value: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], step: int
    ) -> npt.NDArray[np.int64]:
        """Return which row, 0 the newest, a point of [0, `totals`) falls on.

        The running sum of the weights is a parabola, then a line, so it is inverted in closed
        form: nothing is as long as the memory.
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


def sampling_of(config: Any) -> SampleWeightDecay | None:
    """Return what ``agent.sampling`` of a config asks for; None for uniform draws.

    Raises:
        ConfigError: naming what is wrong and what is allowed.
    """
    if config is None:
        return None
    if not isinstance(config, Mapping) or "method" not in config:
        raise ConfigError(
            f"{KEY} = {shortened(config)}: allowed is null, or a mapping with a method, such as "
            "{method: sample_weight_decay, params: {decay: 80000}}"
        )
    check_known(KEY, config, ("method", "params"))
    params = config.get("params")
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"{KEY}.params = {shortened(params)}: allowed is a mapping")
    return build("replay", config["method"], params)
