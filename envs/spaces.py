"""What an agent sees of Gymnasium's spaces, and how it acts in them; spaces are never sampled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten

__all__ = ["MOST_ACTIONS", "Acted", "Seen", "acted", "seen"]

MOST_ACTIONS = 1024  # of a MultiDiscrete or MultiBinary space
MOST_ENTRIES = 10**7  # of an observation
_PARTS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
_ALLOWED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"


@dataclass(frozen=True)
class Seen:
    """Observations as the agent sees them.

    Attributes:
        shape: (size,), or (channels, height, width) of a picture.
        dtype: float32, or uint8 of a picture.
        scale: what networks multiply them by: 1/255 for bytes.
        read: turns the environment's own observation into such an array; raises where it is
            not one of the space, but for the bounds of numbers.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float
    read: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Acted:
    """Actions as the agent chooses them.

    Attributes:
        count: actions are the integers below it; None for vectors.
        bounds: lowest and highest vectors, (action_dim,); None for integers.
        native: turns an integer, or a vector within the bounds, into the environment's own action.
    """

    count: int | None
    bounds: tuple[np.ndarray, np.ndarray] | None
    native: Callable[[Any], Any]


def seen(env_id: str, space: Any, keys: Sequence[str] | None = None) -> Seen:
    """Return how an agent sees the observations of a space.

    A Box of bytes with two or three axes, each of three axes being the smaller of the first and
    the last as channels, is a picture. All else is flattened in Gymnasium's order, with integers
    of Discrete and MultiDiscrete as one-hot vectors.

    Args:
        env_id: named in errors.
        space: the environment's `observation_space`.
        keys: the entries of a Dict to see; None for all.

    Raises:
        ValueError: for spaces of other kinds, keys it does not have, or no entries.
    """
    kind = type(space).__name__
    known = list(space) if kind == "Dict" else []
    chosen = known if keys is None else keys
    if missing := [key for key in chosen if key not in known]:
        raise ValueError(
            f"option 'keys' of env '{env_id}' has {missing[0]!r}: allowed are "
            f"{', '.join(known) or f'none, since its observations are {kind}'}"
        )
    pick: Callable[[Any], Any] = lambda obs: obs  # noqa: E731
    if len(chosen) == 1:
        space, pick = space[chosen[0]], itemgetter(chosen[0])
    elif keys is not None:
        space = spaces.Dict({key: space[key] for key in keys})
    _check_parts(env_id, space, "observations")
    if type(space).__name__ == "Box" and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        return _picture(env_id, space, pick)
    size = flatdim(space)
    if not size:
        raise ValueError(f"observations of env '{env_id}' have no entries: {space}")
    if size > MOST_ENTRIES:
        raise ValueError(
            f"observations of env '{env_id}' have {size} entries, integers being one-hot: allowed "
            f"are up to {MOST_ENTRIES}; wrap the environment so that it gives numbers"
        )
    whole = type(space).__name__ == "Box" and space.dtype == np.uint8
    bytes_only = whole and space.low.min() == 0 and space.high.max() == 255
    scale = 1 / 255 if bytes_only else 1.0
    return Seen((size,), "float32", scale, lambda obs: np.concatenate([*_parts(space, pick(obs))]))


def _check_parts(env_id: str, space: Any, path: str) -> None:
    kind = type(space).__name__
    if kind not in _PARTS:
        raise ValueError(
            f"{path} of env '{env_id}' are {kind}, for which there is no flattening rule (allowed: "
            f"{_ALLOWED}): choose entries with env.options: {{keys: [...]}}, or wrap the "
            "environment"
        )
    if kind in ("Dict", "Tuple"):
        parts = space.items() if kind == "Dict" else enumerate(space)
        for name, part in parts:
            _check_parts(env_id, part, f"{path}[{name!r}]")


def _picture(env_id: str, space: Any, pick: Callable[[Any], Any]) -> Seen:
    shape = space.shape
    if 0 in shape:
        raise ValueError(f"observations of env '{env_id}' have no entries: {space}")
    scale = 1 / max(1, int(space.high.max()))

    def turned(picture: np.ndarray) -> np.ndarray:
        if len(shape) == 2:
            return picture[None]
        return np.moveaxis(picture, -1, 0) if shape[-1] <= shape[0] else picture

    seen_shape = turned(np.empty(shape)).shape
    return Seen(seen_shape, "uint8", scale, lambda obs: turned(_bytes(_boxed(shape, pick(obs)))))


def _boxed(shape: tuple[int, ...], obs: Any) -> np.ndarray:
    array = np.asarray(obs)
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{array.dtype} of shape {array.shape} where numbers of shape {shape} belong"
        )
    return array


def _bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.uint8)
    if not np.array_equal(whole, array):
        raise ValueError(f"{array.dtype} where whole numbers from 0 to 255 belong")
    return whole


def _parts(space: Any, obs: Any) -> Iterator[np.ndarray]:
    """Yield the vectors that an observation of a space consists of, in Gymnasium's order."""
    # Gymnasium's `flatten` alone would cast numbers to the type of their space, which may be unable
    # to hold them, and take what is not of the space.
    kind = type(space).__name__
    if kind == "Box":
        array = _boxed(space.shape, obs)
        yield (_bytes(array) if space.dtype == np.uint8 else array).reshape(-1)
    elif kind == "Dict":
        for key, part in space.items():
            yield from _parts(part, obs[key])
    elif kind == "Tuple":
        for part, inner in zip(space, obs, strict=True):
            yield from _parts(part, inner)
    elif kind == "MultiBinary":
        yield _whole(obs, space.shape, 0, 2).reshape(-1)
    else:
        one = kind == "Discrete"
        obs, shape = (np.reshape(obs, ()), ()) if one else (obs, space.shape)
        chosen = _whole(obs, shape, space.start, space.n if one else space.nvec)
        one_hot: Any = flatten(space, chosen.astype(space.dtype))
        yield one_hot.astype(np.float32)


def _whole(obs: Any, shape: tuple[int, ...], start: Any, count: Any) -> np.ndarray:
    array = _boxed(shape, obs)
    if ((array < start) | (array >= start + count) | (array % 1 != 0)).any():
        raise ValueError(f"{array.tolist()} is none of the integers of its space")
    return array


def acted(env_id: str, space: Any) -> Acted:
    """Return how an agent acts in a space, the environment's `action_space`.

    A MultiDiscrete or MultiBinary space of up to `MOST_ACTIONS` combinations is numbered through,
    the last entry running fastest.

    Raises:
        ValueError: for spaces of other kinds, more combinations, or bounds that are not finite.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return Acted(int(space.n), None, lambda action: space.start + action)
    if kind in ("MultiDiscrete", "MultiBinary"):
        sizes = np.full(space.shape, 2) if kind == "MultiBinary" else space.nvec
        start = space.start if kind == "MultiDiscrete" else np.zeros(space.shape, space.dtype)
        count = int(np.prod(sizes, dtype=object))
        if count > MOST_ACTIONS:
            raise ValueError(
                f"actions of env '{env_id}' are {kind} with {count} combinations: allowed are up "
                f"to {MOST_ACTIONS}; wrap the environment so that it offers fewer"
            )

        def combined(action: int) -> np.ndarray:
            chosen = np.array(np.unravel_index(action, sizes.reshape(-1)), space.dtype)
            return chosen.reshape(sizes.shape) + start

        return Acted(count, None, combined)
    if kind != "Box" or np.dtype(space.dtype).kind != "f" or not np.prod(space.shape, dtype=int):
        given = f"a Box of {np.dtype(space.dtype)}, shape {space.shape}" if kind == "Box" else kind
        raise ValueError(
            f"actions of env '{env_id}' are {given}: allowed are Discrete, MultiDiscrete, "
            "MultiBinary and a Box of floats; wrap the environment so that it takes one of them"
        )
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    with np.errstate(over="ignore"):
        span = high.astype(np.float64) - low  # by which actions are scaled
    bad = ~(np.isfinite(low) & np.isfinite(high) & np.isfinite(span) & (low < high))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"entry {at} of the actions of env '{env_id}' has the bounds {low[at]} and {high[at]}: "
            "actions in [-1, 1] are rescaled to the bounds, so they must be finite and apart, and "
            "so must their difference"
        )
    # A copy, which the environment may change.
    return Acted(None, (low, high), lambda action: np.array(action).reshape(space.shape))
