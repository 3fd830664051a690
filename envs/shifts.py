"""One environment as many tasks: what it shows and does is changed, by a draw for each task.

| name | a task draws | source |
|---|---|---|
| permuted_observations | an order of coordinates and their signs; of channels; of pixels | |
| shifted_observations | a constant vector, N(0, std²) | Muppidi et al. 2024; Tang et al. 2025 |
| scaled_actions | a factor on continuous actions, log-uniform | |
| delayed_actions | how many steps late actions are done, 1 to `most` | |
| friction | a factor on the sliding friction, log-uniform | Dohare et al. 2024, SlipperyAnt |
| gravity | a factor on the gravity, log-uniform | |
| moved_goal | the hidden goal of ``toy/nine_rooms``; task 0 draws one too | Chung et al. 2024 |
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveFloat

from rlplast.envs.base import EnvSpec

__all__ = ["NO_SHIFT", "SHIFTS", "Shift", "draw_shift"]

# Parameters: their default and type. SlipperyAnt's frictions are in [0.02, 2] at Ant's own of 1;
# C-CHAIN's shift has a standard deviation of 2.
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=0, le=1_000_000)]
SHIFTS: dict[str, dict[str, tuple[Any, Any]]] = {
    "permuted_observations": {},
    "shifted_observations": {"std": (2.0, PositiveFloat)},
    "scaled_actions": {"low": (0.25, Share), "high": (1.0, Share)},
    "delayed_actions": {"most": (3, Annotated[int, Field(ge=1, le=1000)])},
    "friction": {"low": (0.02, Factor), "high": (2.0, Factor)},
    "gravity": {"low": (0.5, Factor), "high": (2.0, Factor)},
    "moved_goal": {},
}


@dataclass(frozen=True)
class Shift:
    """How a task differs from its environment.

    Attributes:
        options: of the environment, in place of its own.
        factors: on options of the environment.
        order: entry i of an observation is the environment's entry order[i]: of coordinates, of
            the channels of (channels, height, width), or of the pixels of (height, width).
        sign: float32 (coordinates,) of −1 and 1, multiplied in after that.
        offset: float32 (coordinates,), added at last.
        scale: factor on continuous actions.
        delay: steps by which actions are done late.
    """

    options: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    order: np.ndarray | None = None
    sign: np.ndarray | None = None
    offset: np.ndarray | None = None
    scale: float = 1.0
    delay: int = 0

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """Return observations (N, *obs_shape) as the task shows them."""
        if self.order is not None:
            pixels = obs.ndim == 3
            flat = obs.reshape(len(obs), -1) if pixels else obs
            obs = flat[:, self.order].reshape(obs.shape)
        if self.sign is not None:
            obs = obs * self.sign
        return obs if self.offset is None else obs + self.offset


NO_SHIFT = Shift()


def draw_shift(name: str, spec: EnvSpec, rng: np.random.Generator, **params: Any) -> Shift:
    """Draw a task by one of `SHIFTS`, all of whose `params` are given.

    Raises:
        ValueError: if it does not go with the environment.
    """
    vectors = len(spec.obs_shape) == 1
    if name == "permuted_observations":
        units = int(np.prod(spec.obs_shape)) if len(spec.obs_shape) == 2 else spec.obs_shape[0]
        if units == 1 and not vectors:
            raise ValueError(f"observations of env '{spec.id}' have one channel: allowed are more")
        while True:  # until it is not the identity, which task 0 is
            order = rng.permutation(units)
            sign = rng.choice(np.array([-1, 1], np.float32), units) if vectors else None
            if (order != np.arange(units)).any() or (sign is not None and (sign < 0).any()):
                return Shift(order=order, sign=sign)
    if name == "shifted_observations":
        if not vectors:
            raise ValueError(f"observations of env '{spec.id}' are pictures: allowed are vectors")
        return Shift(offset=rng.normal(0, params["std"], spec.obs_shape).astype(np.float32))
    if name == "moved_goal":
        if spec.id != "toy/nine_rooms":
            raise ValueError(f"env '{spec.id}' has no hidden goal: allowed is 'toy/nine_rooms'")
        return Shift(options={"goal_seed": int(rng.integers(10**9))})
    if name == "delayed_actions":
        return Shift(delay=int(rng.integers(1, params["most"], endpoint=True)))
    factor = float(np.exp(rng.uniform(np.log(params["low"]), np.log(params["high"]))))
    if name == "scaled_actions":
        if spec.action_dim is None:
            raise ValueError(f"actions of env '{spec.id}' are integers: allowed are vectors")
        return Shift(scale=factor)
    return Shift(factors={name: factor})
