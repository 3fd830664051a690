"""CIFAR-10-C and CIFAR-100-C: test images with corruptions (Hendrycks & Dietterich 2019)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.formats import Images, checked_labels, unreadable

__all__ = ["read_corrupted"]

SEVERITIES = 5
CORRUPTIONS = frozenset(
    "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow "
    "frost fog brightness contrast elastic_transform pixelate jpeg_compression".split()
)
_SOURCE = "https://zenodo.org/records/2535967 (CIFAR-100-C: https://zenodo.org/records/3555552)"


def read_corrupted(
    folder: Path, input_shape: tuple[int, int, int], num_classes: int
) -> dict[str, Callable[[], Images]]:
    """Return functions that read the test sets ``<corruption>/<severity>``, severities 1 to 5.

    The folder has ``labels.npy`` and a file per corruption, uint8 (n, height, width, channels), its
    first fifth of severity 1, the last of 5. Not all 15 of the benchmark need be there; other files
    are left out, such as the four corruptions that the authors set aside for tuning.

    Raises:
        ConfigError: if labels or all corruptions are missing.
        DamagedFile: naming a file that is cut, or of another shape, type or length.
    """
    names = sorted(CORRUPTIONS & {path.stem for path in folder.glob("*.npy")})
    path = folder / "labels.npy"
    if not path.is_file() or not names:
        raise ConfigError(
            f"data.corrupted = '{folder}': labels.npy and files such as gaussian_noise.npy are not "
            f"there; they come from {_SOURCE} (`rlplast data cifar{num_classes}_c --root DIR` says "
            "what is needed, and unpacks it)"
        )
    labels = _labels(path, num_classes)
    channels, height, width = input_shape
    needed, readers = (len(labels), height, width, channels), {}
    for name in names:
        array = _load(folder / f"{name}.npy")
        if array.shape != needed or array.dtype != np.uint8:
            raise DamagedFile(
                f"{folder / name}.npy is {array.dtype} of shape {array.shape}; needed is uint8 of "
                f"{needed}"
            )
        for severity in range(1, SEVERITIES + 1):
            readers[f"{name}/{severity}"] = partial(_part, array, labels, severity)
    return readers


def _labels(path: Path, num_classes: int) -> Tensor:
    stored = _load(path)
    if stored.ndim != 1 or stored.dtype.kind not in "ui" or len(stored) % SEVERITIES:
        raise DamagedFile(
            f"{path} is {stored.dtype} of shape {stored.shape}; needed are whole numbers, one per "
            f"image, a multiple of {SEVERITIES}"
        )
    return checked_labels(stored, len(stored), num_classes, path)


def _part(array: np.ndarray, labels: Tensor, severity: int) -> Images:
    size = len(labels) // SEVERITIES
    here = slice((severity - 1) * size, severity * size)
    x = np.array(array[here].transpose(0, 3, 1, 2), order="C")
    return Images(torch.from_numpy(x), labels[here])


def _load(path: Path) -> np.ndarray:
    """Map a ``.npy`` file; one with objects, which are pickles, is refused."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, EOFError, ValueError, TokenError) as error:  # the last of a header
        raise unreadable(path, error) from error
