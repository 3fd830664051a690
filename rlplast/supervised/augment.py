"""Random changes of training images, a whole batch at once."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rlplast.core.device import on_device

__all__ = ["Augmentation", "augment"]

Augmentation = Literal["crop", "flip"]
_PAD = 4  # pixels of zeros on each side
_SHIFTS = 2 * _PAD + 1


def augment(x: Tensor, names: Sequence[str], generator: torch.Generator) -> Tensor:
    """Return a batch (n, channels, height, width), every image shifted and mirrored at random.

    ``crop`` shifts by −4 to 4 pixels both ways, zeros coming in: black, of raw images. ``flip``
    mirrors left and right with probability 1/2, after the crop. One number is drawn per image, on
    the CPU, whatever the names, so switching one off leaves the other as it was.
    """
    batch, channels, height, width = x.shape
    draw = torch.randint(0, 2 * _SHIFTS**2, (batch, 1), generator=generator)
    draw = on_device(draw, x.device)
    rows = torch.arange(height, device=x.device).expand(batch, height)
    columns = torch.arange(width, device=x.device).expand(batch, width)
    if "flip" in names:
        columns = torch.where(draw % 2 == 1, width - 1 - columns, columns)
    if "crop" in names:
        x = F.pad(x, (_PAD,) * 4)
        rows, columns = rows + draw // 2 // _SHIFTS, columns + draw // 2 % _SHIFTS
    places = rows[:, :, None] * x.shape[3] + columns[:, None, :]
    places = places.view(batch, 1, -1).expand(-1, channels, -1)
    return x.flatten(2).gather(2, places).view(batch, channels, height, width)
