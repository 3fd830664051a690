"""Pictures that stay where they are stored and are decoded when a batch asks for them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from rlplast.core.device import on_device

__all__ = ["StoredPictures"]

_SAMPLE = 256  # pictures that a fingerprint is made of


@dataclass(frozen=True)
class StoredPictures:
    """Pictures of one shape, each read again whenever it is needed: 8 bytes of memory a picture."""

    # Number in its file → values (channels, height, width), uint8; called by several threads.
    read: Callable[[int], np.ndarray]
    rows: Tensor  # the numbers of these pictures (n,), int64, on the CPU
    one: tuple[int, int, int]  # channels, height and width
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # of batches

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that these pictures stand for, (n, channels, height, width)."""
        return torch.Size((len(self.rows), *self.one))

    def __getitem__(self, indices: Tensor) -> "StoredPictures":
        """Return the pictures at `indices`, (k,) int64, or where a mask (n,) is true."""
        return replace(self, rows=self.rows[indices.cpu()])

    def to(self, device: torch.device | str) -> "StoredPictures":
        """Return the same pictures, whose batches go to a device."""
        return replace(self, device=torch.device(device))

    def load(self, indices: Tensor) -> Tensor:
        """Return raw values (k, channels, height, width), uint8, of the pictures at `indices`."""
        rows = self.rows[indices.cpu()].tolist()
        x = np.empty((len(rows), *self.one), np.uint8)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for place, values in enumerate(pool.map(self.read, rows)):
                x[place] = values
        return on_device(x, self.device)

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the raw values of all pictures, in order, so many at a time."""
        return map(self.load, torch.arange(len(self.rows)).split(size))

    def sample(self) -> Tensor:
        """Return the raw values of some pictures, evenly spaced: a fingerprint reads no others."""
        places = torch.linspace(0, len(self.rows) - 1, min(_SAMPLE, len(self.rows)))
        return self.load(places.round().long())
