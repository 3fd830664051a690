"""Which Gymnasium spaces an agent can work with; they are read, never sampled."""

from typing import Any

import numpy as np

__all__ = ["action_size", "observation_size"]

_REMEDIES = {
    "Dict": "wrap it with gymnasium.wrappers.FlattenObservation",
    "Tuple": "wrap it with gymnasium.wrappers.FlattenObservation",
    "Discrete": "return it one-hot, as float32",
    "MultiDiscrete": "return it one-hot, as float32",
    "MultiBinary": "return it as a Box of float32",
}


def observation_size(env_id: str, space: Any) -> int:
    """Return how many numbers an observation has; a Box of any shape is flattened.

    Args:
        env_id: named in errors.
        space: the environment's `observation_space`.

    Raises:
        ValueError: unless it is a Box of floats with at least one entry.
    """
    kind = type(space).__name__
    if kind != "Box":
        remedy = _REMEDIES.get(kind, "return a Box of float32")
        raise ValueError(
            f"observations of env '{env_id}' are {kind}, for which there is no flattening rule: "
            f"{remedy} (allowed: Box of floats)"
        )
    if np.dtype(space.dtype).kind != "f":
        raise ValueError(
            f"observations of env '{env_id}' are a Box of {np.dtype(space.dtype)}: wrap it with "
            "gymnasium.wrappers.DtypeObservation(env, numpy.float32) (allowed: Box of floats)"
        )
    size = int(np.prod(space.shape, dtype=int))
    if not size:
        raise ValueError(f"observations of env '{env_id}' have shape {space.shape}: no entries")
    return size


def action_size(env_id: str, space: Any) -> int | tuple[np.ndarray, np.ndarray]:
    """Return the number of actions, or the lowest and highest ones, both flattened.

    Args:
        env_id: named in errors.
        space: the environment's `action_space`.

    Raises:
        ValueError: unless it is Discrete or a Box of floats with finite bounds.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return int(space.n)
    if kind != "Box" or np.dtype(space.dtype).kind != "f" or not np.prod(space.shape, dtype=int):
        found = f"a Box of {np.dtype(space.dtype)}, shape {space.shape}" if kind == "Box" else kind
        raise ValueError(
            f"actions of env '{env_id}' are {found}: allowed are Discrete and a Box of floats"
        )
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    bad = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"entry {at} of the actions of env '{env_id}' has the bounds {low[at]} and {high[at]}: "
            "actions in [-1, 1] are rescaled to the bounds, so they must be finite and apart"
        )
    return low, high
