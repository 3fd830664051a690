"""Frames of a replay in the memory of a GPU: an update sends row numbers and no pictures."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlplast.core.device import on_device

__all__ = ["DeviceFrames", "fits"]


def fits(nbytes: int, device: torch.device) -> bool:
    """Whether frames take at most half of a GPU's free memory, as networks need some too."""
    return device.type == "cuda" and 2 * nbytes <= torch.cuda.mem_get_info(device)[0]


class DeviceFrames:
    """A copy on a CUDA device of the frames that a replay keeps, and saves, on the host."""

    def __init__(self, frames: npt.NDArray[Any], device: torch.device) -> None:
        self._host, self._device = frames, device
        dtype = torch.from_numpy(frames[:0]).dtype
        self._frames = torch.zeros(frames.shape, dtype=dtype, device=device)

    def write(self, at: npt.NDArray[np.int64]) -> None:
        """Copy rows that the host has written."""
        if len(at):
            rows = on_device(self._host[at], self._device)
            self._frames.index_copy_(0, on_device(at, self._device), rows)

    def load(self) -> None:
        """Copy all rows, after the host has read a checkpoint."""
        self._frames.copy_(torch.from_numpy(self._host))

    def stack(
        self, rows: npt.NDArray[np.int64], blank: npt.NDArray[np.bool_] | None, out: Tensor
    ) -> None:
        """Write stacks of frames to `out`, `[batch, *stacked_shape]`, on the device.

        `rows` is `[batch, frame_stack]`, where they lie; `blank` likewise, which are zero instead.
        """
        flat = out.view(rows.size, *self._host.shape[1:])
        torch.index_select(self._frames, 0, on_device(rows.ravel(), self._device), out=flat)
        if blank is not None:
            mask = on_device(blank.ravel(), self._device)
            flat.masked_fill_(mask.view(-1, *(1,) * (flat.ndim - 1)), 0)
