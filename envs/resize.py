"""Area resizing of pictures, and grey from colour, in exact integer arithmetic.

Integers make the result independent of threads, libraries and processors. It is within one grey
level of OpenCV's `INTER_AREA`, which rounds a float sum. Grey is equal to OpenCV's.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["BoxTaps", "area_resize", "box_taps", "grey"]

# Weights of red, green and blue, 0.299, 0.587 and 0.114, in units of 2⁻¹⁵; they add up to 1.
_LUMA, _LUMA_BITS = np.array([9798, 19235, 3735], np.uint32), 15


@dataclass(frozen=True)
class BoxTaps:
    """Box filter along one axis, sparse.

    Attributes:
        index: input positions, one array (size_out,) per tap.
        weight: their weights, one column (size_out, 1) per tap.
        total: the sum of the integer weights of every output position.
    """

    index: list[np.ndarray]
    weight: list[np.ndarray]
    total: int


def box_taps(size_in: int, size_out: int) -> BoxTaps:
    """Return the filter that shrinks an axis of `size_in` pixels to `size_out`."""
    # In units of 1 / lcm of both sizes every overlap is an integer: an input pixel is `unit` long,
    # an output pixel `total`.
    divisor = int(np.gcd(size_in, size_out))
    total, unit = size_in // divisor, size_out // divisor
    starts = np.arange(size_out) * total
    index, weight = [], []
    for tap in range(-(-total // unit) + 1):
        pixel = starts // unit + tap
        overlap = np.minimum(starts + total, (pixel + 1) * unit) - np.maximum(starts, pixel * unit)
        # Past the end the overlap is empty; the index only has to exist.
        index.append(np.minimum(pixel, size_in - 1))
        weight.append(np.maximum(overlap, 0).astype(np.uint32)[:, None])
    return BoxTaps(index, weight, total)


def _shrink_first_axis(picture: np.ndarray, taps: BoxTaps) -> np.ndarray:
    total = picture[taps.index[0]] * taps.weight[0]
    for index, weight in zip(taps.index[1:], taps.weight[1:], strict=True):
        total += picture[index] * weight
    return total


def area_resize(picture: np.ndarray, rows: BoxTaps, columns: BoxTaps) -> np.ndarray:
    """Shrink a uint8 picture (height, width) to (rows, columns), rounding halves up."""
    sums = _shrink_first_axis(picture.astype(np.uint32), rows)
    sums = _shrink_first_axis(np.ascontiguousarray(sums.T), columns).T
    area = rows.total * columns.total
    return np.ascontiguousarray((sums + area // 2) // area, dtype=np.uint8)


def grey(picture: np.ndarray) -> np.ndarray:
    """Return the luma of a uint8 picture (..., 3) by Rec. ITU-R BT.601, rounding halves up."""
    return ((picture @ _LUMA + (1 << _LUMA_BITS - 1)) >> _LUMA_BITS).astype(np.uint8)
