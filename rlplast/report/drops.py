"""How far a score falls at an intervention, when it is back, and what is lost until then.

- `Drop`, `drop_and_recovery`: of one intervention.
- `lost_area`: the area between a level and a curve.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Drop", "drop_and_recovery", "lost_area"]


@dataclass(frozen=True)
class Drop:
    """What an intervention did to a score at once, and for how long.

    Attributes:
        drop: how much worse the first score after it is than the last before; negative if better.
        recovered_after: units of the curve's x from the intervention to the first score that
            is at least as good as the last before; 0 without a drop, None if that never came.
        area: what was lost until then, or until the curve's end: score times units of x; see
            `lost_area`. From the intervention to the first score after it the curve is flat.
    """

    drop: float
    recovered_after: float | None
    area: float


def drop_and_recovery(
    xs: np.ndarray, ys: np.ndarray, moment: float, after: int, higher_is_better: bool
) -> Drop | None:
    """Return how much a score fell at an intervention, and when it was back.

    Args:
        xs: ascending, shape (points,).
        ys: shape (points,).
        moment: x of the intervention.
        after: index of the first score after it.
        higher_is_better: False for losses.

    Returns:
        None without a score on either side.
    """
    if not 0 < after < len(xs):
        return None
    sign = 1.0 if higher_is_better else -1.0
    drop = sign * float(ys[after - 1] - ys[after])
    back = xs[after:][sign * (ys[after:] - ys[after - 1]) >= 0]
    recovered = float(back[0] - moment) if len(back) else None
    later = np.append(moment, xs[after:]), sign * np.append(ys[after], ys[after:])
    area = lost_area(*later, sign * float(ys[after - 1]))
    return Drop(drop, 0.0 if drop <= 0 else recovered, area)


def lost_area(xs: np.ndarray, ys: np.ndarray, level: float) -> float:
    """Return the area between a level and a curve below it, until the curve is back at it.

    Args:
        xs: ascending, shape (points,), at least one.
        ys: shape (points,); straight lines lie between the points.
        level: of ys.

    Returns:
        At least 0, in units of ys times xs; 0 if the curve begins at the level or above. Up to the
        last point if it never comes back.

    Examples:
        >>> float(lost_area(np.array([0, 2, 6]), np.array([1, 1, 5]), 3))
        6.0
    """
    below = level - ys
    back = np.flatnonzero(below <= 0)
    if len(back):
        i = int(back[0])
        if i == 0:
            return 0.0
        share = below[i - 1] / (below[i - 1] - below[i])
        crossing = xs[i - 1] + share * (xs[i] - xs[i - 1])
        xs, below = np.append(xs[:i], crossing), np.append(below[:i], 0.0)
    return float(np.trapezoid(below, xs))
