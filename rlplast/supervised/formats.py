"""Image sets in their published binary formats.

The python version of CIFAR is a pickle, and nothing is unpickled here.
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.stored import StoredPictures

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CifarLayout",
    "Images",
    "checked_images",
    "checked_labels",
    "missing",
    "read_cifar",
    "read_mnist",
    "unreadable",
]

AGAIN = "download it again; `rlplast data` says from where"
_UNSIGNED_BYTE = 8  # idx's code of the type
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Images:
    """Pictures and their labels."""

    x: Tensor | StoredPictures  # raw values (n, channels, height, width), uint8
    y: Tensor  # labels (n,), int64; of stored pictures on the CPU, as the indices are

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.y)

    def __getitem__(self, indices: Tensor) -> "Images":
        """Return the images at `indices`, (k,) int64, or where a mask (n,) is true."""
        return Images(self.x[indices], self.y[indices])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw values and labels at `indices` (k,), which are where the labels are."""
        y = self.y.index_select(0, indices)
        if isinstance(self.x, StoredPictures):
            return self.x.load(indices), y.to(self.x.device)
        return self.x.index_select(0, indices), y

    def parts(self, size: int) -> Iterator[Tensor]:
        """Yield the raw values of all images in order, stored ones so many at a time."""
        return self.x.split(size) if isinstance(self.x, StoredPictures) else iter([self.x])

    def pixels(self) -> Tensor:
        """Return the raw values of all images, those of a batch for example."""
        return self.x if isinstance(self.x, Tensor) else self.x.load(torch.arange(len(self)))

    @property
    def stored(self) -> bool:
        """Whether the pictures are decoded by batch."""
        return isinstance(self.x, StoredPictures)

    def fingerprinted(self) -> list[Tensor]:
        """Return the tensors that identify the images: labels, and pictures (a few, if stored)."""
        return [self.x.sample() if isinstance(self.x, StoredPictures) else self.x, self.y]

    def to(self, device: torch.device | str) -> "Images":
        """Return the images on a device."""
        return Images(self.x.to(device), self.y if self.stored else self.y.to(device))


def checked_labels(y: np.ndarray, images: int, num_classes: int | None, where: object) -> Tensor:
    """Return labels (n,) of so many images as int64; `num_classes` is None if it is not known.

    Raises:
        DamagedFile: naming `where` they come from, for a label out of range, no image, or another
            number of labels.
    """
    if len(y) != images or not images:
        raise DamagedFile(
            f"{where}: {images} images and {len(y)} labels; allowed is one label for each image, "
            "and at least one image"
        )
    wrong = np.flatnonzero((y < 0) | (num_classes is not None and y >= num_classes))
    if wrong.size:
        allowed = "0 and more" if num_classes is None else f"0 to {num_classes - 1}"
        raise DamagedFile(
            f"{where}: image {wrong[0]} has label {y[wrong[0]]}; allowed is {allowed}"
        )
    return torch.from_numpy(y.astype(np.int64))


def checked_images(x: np.ndarray, y: np.ndarray, num_classes: int | None, where: object) -> Images:
    """Return images of uint8 (n, channels, height, width); errors as of `checked_labels`."""
    labels = checked_labels(y, len(x), num_classes, where)
    if not x.size:
        raise DamagedFile(f"{where}: images have shape {x.shape[1:]}; allowed is no side of 0")
    return Images(torch.from_numpy(np.require(x, np.uint8, ["C", "W"])), labels)


def missing(folder: Path, name: str, source: str, data: str) -> ConfigError:
    """Return the error for a file of a set, `data`, that is not where it is expected."""
    return ConfigError(
        f"data.folder = '{folder}': {name} is not there; it comes from {source} "
        f"(`rlplast data {data} --root {folder}` says what is needed, and unpacks it)"
    )


def unreadable(path: Path, error: BaseException) -> DamagedFile:
    """Return the error for a file that is cut or damaged."""
    size = path.stat().st_size if path.exists() else 0
    remedy = "fix permissions" if isinstance(error, PermissionError) else AGAIN
    return DamagedFile(f"{path} cannot be read, {size} bytes ({error}): {remedy}")


# MNIST.


def read_mnist(folder: Path) -> tuple[Images, Images]:
    """Return training and test images of a set in the format of MNIST: four idx files, or ``.gz``.

    Raises:
        ConfigError: naming a file that is missing.
        DamagedFile: naming a file that is cut or no such idx file.
    """
    train, test = (_mnist_part(folder, part) for part in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DamagedFile(
            f"{folder}: training images have (channels, height, width) {tuple(train.x.shape[1:])}, "
            f"t10k images {tuple(test.x.shape[1:])}; needed is one size: download them again"
        )
    return train, test


def _mnist_part(folder: Path, part: str) -> Images:
    x = _read_idx(folder, f"{part}-images-idx3-ubyte", 3)
    y = _read_idx(folder, f"{part}-labels-idx1-ubyte", 1)
    return checked_images(x[:, None], y, 10, folder / f"{part}-labels-idx1-ubyte")


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Return the uint8 array of an idx file (http://yann.lecun.com/exdb/mnist/)."""
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.is_file() else packed
    if not path.is_file():
        raise missing(folder, f"{name} (or {name}.gz)", f"{MNIST_URL}{name}.gz", "mnist")
    try:
        data = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise unreadable(path, error) from error
    # Two zero bytes, the type, the number of dimensions; then a big-endian uint32 per dimension.
    magic, header = bytes([0, 0, _UNSIGNED_BYTE, dimensions]), 4 + 4 * dimensions
    if len(data) < header or data[:4] != magic:
        raise DamagedFile(
            f"{path} begins with {data[:4].hex()} and has {len(data)} bytes; an idx file of "
            f"{dimensions} dimensions begins with {magic.hex()} and has at least {header}: {AGAIN}"
        )
    shape = [int(n) for n in np.frombuffer(data, ">u4", dimensions, 4)]
    if len(data) != header + math.prod(shape):
        raise DamagedFile(
            f"{path} has {len(data)} bytes; its header, shape {shape}, needs "
            f"{header + math.prod(shape)}: {AGAIN}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


# CIFAR.


@dataclass(frozen=True)
class CifarLayout:
    """What one of the CIFAR sets is made of."""

    archive: str  # the published file
    folder: str  # in it
    train: tuple[str, ...]  # files
    test: str  # file
    label_bytes: int  # before a picture; the last is the label (CIFAR-100: the fine one)
    num_classes: int

    @property
    def name(self) -> str:
        """What `DataConfig.name` calls it."""
        return f"cifar{self.num_classes}"


CIFAR10 = CifarLayout(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test_batch.bin",
    1,
    10,
)
CIFAR100 = CifarLayout(
    "cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", 2, 100
)


def read_cifar(folder: Path, layout: CifarLayout) -> tuple[Images, Images]:
    """Return training and test images of CIFAR-10 or CIFAR-100.

    The folder holds the ``.bin`` files, or the folder that they are published in.

    Raises:
        ConfigError: naming a file that is missing.
        DamagedFile: naming a file that is cut, or where a label is wrong.
    """
    inner = folder / layout.folder
    place = inner if inner.is_dir() else folder
    parts = []
    for name in (*layout.train, layout.test):
        if not (place / name).is_file():
            raise missing(folder, name, f"{CIFAR_URL}{layout.archive}", layout.name)
        parts.append(_cifar_records(place / name, layout.label_bytes))
    train = np.concatenate(parts[:-1])
    return _cifar_images(train, place, layout), _cifar_images(parts[-1], place, layout)


def _cifar_records(path: Path, label_bytes: int) -> np.ndarray:
    data, length = path.read_bytes(), label_bytes + 3 * 32 * 32
    if not data or len(data) % length:
        raise DamagedFile(
            f"{path} has {len(data)} bytes; needed are {length} for each image: {AGAIN}"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, length)


def _cifar_images(records: np.ndarray, folder: Path, layout: CifarLayout) -> Images:
    # The label's bytes, then 1024 red, 1024 green and 1024 blue values, row by row.
    label, x = records[:, layout.label_bytes - 1], records[:, layout.label_bytes :]
    return checked_images(x.reshape(-1, 3, 32, 32), label, layout.num_classes, folder)
