"""The images that a classifier learns from, as tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream, torch_stream
from rlplast.core.validation import Section, check_section
from rlplast.supervised.corrupted import read_corrupted
from rlplast.supervised.formats import (
    CIFAR10,
    CIFAR100,
    Images,
    checked_images,
    read_cifar,
    read_mnist,
)
from rlplast.supervised.pictures import HuggingFaceConfig, read_huggingface, read_tiny_imagenet
from rlplast.supervised.sizes import sizes_of

__all__ = ["REGRESSIONS", "DataConfig", "Dataset", "hold_out", "load_data", "normaliser"]

_PART = 256  # stored pictures that are in memory at a time
REGRESSIONS = ("bit_flipping", "curve", "table")  # rlplast.supervised.regression has them
Name = Literal[
    "digits",
    "mnist",
    "cifar10",
    "cifar100",
    "tiny_imagenet",
    "huggingface",
    "random",
    "bit_flipping",
    "curve",
    "table",
]
Published = Literal["mnist", "cifar10", "cifar100", "tiny_imagenet"]


@dataclass
class DataConfig(Section):
    """The images.

    Attributes:
        name: images: digits (part of scikit-learn, no download), mnist, cifar10, cifar100,
            tiny_imagenet, huggingface, or random (noise around a random pattern of each class, the
            same for every seed). Or a regression, with the squared error as loss and score:
            bit_flipping (bits, and the output of a fixed random network), curve (points of y = 3
            sin(3x) + x), table (a file's rows).
        folder: folder of the published files; docs/how-to/get-data.md shows each layout.
        corrupted: folder of the .npy files of CIFAR-10-C or CIFAR-100-C, for mCA; null for none.
        validation: share of each class's images held out for validation, drawn from the run's seed;
            0 for none. Then ``eval/accuracy`` and the like are on these images, and
            ``eval/test_accuracy`` is on the test images.
        validation_of: where the validation images are taken from: train or test.
        test: share held out as test set, for digits and table, which have no published split; the
            same images for every seed.
        like: for random: the set whose image size and number of classes it has; null: cifar10.
        examples: for bit_flipping: examples per task; null: 10000. For curve: number of points;
            null: 100. For random: training images, with a fifth as many test images; null: 1000.
        file: for table: a ``.npz`` file with arrays x and y, or a ``.csv`` file of numbers without
            a header and with the target in the last column.
        huggingface: which data set, for the name huggingface.
    """

    name: Name = "digits"
    folder: str | None = None
    corrupted: str | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    validation_of: Literal["train", "test"] = "train"
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    like: Published | None = None
    examples: PositiveInt | None = None
    file: str | None = None
    huggingface: HuggingFaceConfig = field(default_factory=HuggingFaceConfig)

    @property
    def regression(self) -> bool:
        """Whether targets are numbers rather than classes."""
        return self.name in REGRESSIONS

    @property
    def stored(self) -> bool:
        """Whether pictures are decoded by batch."""
        return self.name == "huggingface" and not self.huggingface.in_memory


@dataclass(frozen=True)
class Dataset:
    """Images to learn from and images to be tested on."""

    name: str  # as in `DataConfig`
    train: Images
    test: Images  # the validation images, if some were held out; `unseen` are then the test images
    num_classes: int  # labels are 0 to num_classes − 1; the outputs of a regression
    # Readers of the corrupted test images, by ``<corruption>/<severity>``.
    corrupted: Mapping[str, Callable[[], Images]] = field(default_factory=dict)
    unseen: Images | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the data on a device, all but the corrupted images."""
        unseen = self.unseen and self.unseen.to(device)
        return replace(self, train=self.train.to(device), test=self.test.to(device), unseen=unseen)


def load_data(config: DataConfig, seed: int) -> Dataset:
    """Read a set of images, or make it; the seed picks the validation images and nothing else.

    Raises:
        ConfigError: for a value out of range, a missing folder, file or package.
        DamagedFile: naming a file that is cut or altered.
    """
    check_section(config, "data")
    train, test, num_classes = _read(config)
    unseen = None
    if config.validation:
        stream = torch_stream(seed, "data", "validation")
        source = train if config.validation_of == "train" else test
        kept, held = hold_out(source, config.validation, stream, "data.validation")
        if config.validation_of == "train":
            train, test, unseen = kept, held, test
        else:
            test, unseen = held, kept
    data = Dataset(config.name, train, test, num_classes, unseen=unseen)
    if config.corrupted is None:
        return data
    folder = _folder("corrupted", config.corrupted, config.name)
    return replace(data, corrupted=read_corrupted(folder, data.input_shape, num_classes))


def _read(config: DataConfig) -> tuple[Images, Images, int]:
    if config.name == "digits":
        return _digits(config.test)
    if config.name == "huggingface":
        return read_huggingface(config.huggingface)
    if config.name == "random":
        return _random(config)
    folder = _folder("folder", config.folder, config.name)
    if config.name == "tiny_imagenet":
        return read_tiny_imagenet(folder)
    if config.name == "mnist":
        return *read_mnist(folder), 10
    layout = CIFAR10 if config.name == "cifar10" else CIFAR100
    return *read_cifar(folder, layout), layout.num_classes


def _folder(key: str, value: str | None, name: str) -> Path:
    data = f"{name}_c" if key == "corrupted" else name
    remedy = (
        f"the folder with the published files of {data}; `rlplast data {data} --root DIR` says "
        "what is needed, and checks it"
    )
    if value is None:
        raise ConfigError(f"data.{key} is not set: give {remedy}")
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"data.{key} = {value!r}: no such folder; give {remedy}")
    return folder


def _digits(share: float) -> tuple[Images, Images, int]:
    """Return scikit-learn's 1797 scans of 8 by 8 pixels, values 0 to 16, split by a fixed seed."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    x = np.asarray(values).astype(np.uint8).reshape(-1, 1, 8, 8)
    images = checked_images(x, np.asarray(labels), 10, "scikit-learn's digits")
    return *hold_out(images, share, torch_stream(0, "data", "split"), "data.test"), 10


def _random(config: DataConfig) -> tuple[Images, Images, int]:
    sizes, _ = sizes_of(replace(config, validation=0.0))
    rng = numpy_stream(0, "data", "random", sizes.shape)
    patterns = rng.integers(0, 192, (sizes.classes, *sizes.shape), np.uint8)
    used = min(sizes.classes, sizes.test)  # fewer classes, so that each can be split again
    labels = np.linspace(0, sizes.classes, used, endpoint=False, dtype=np.int64)

    def part(count: int) -> Images:
        y = labels[np.arange(count) % len(labels)]
        x = patterns[y] + rng.integers(0, 64, (count, *sizes.shape), np.uint8)
        return checked_images(x, y, sizes.classes, "random images")

    return part(sizes.train), part(sizes.test), sizes.classes


def hold_out(
    images: Images, share: float, stream: torch.Generator, key: str = "share"
) -> tuple[Images, Images]:
    """Return the images kept and those held out, in order: the same share of every class, rounded.

    Raises:
        ConfigError: naming `key`, if nothing would be held out, or nothing of a class kept.
    """
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in images.y.unique().tolist():
        of_class = (images.y == label).nonzero()[:, 0]
        count = int(share * len(of_class) + 0.5)
        if count == len(of_class):
            raise ConfigError(
                f"{key} = {share}: class {label} has {len(of_class)} images and none would be "
                "left to train on; give a smaller share"
            )
        held[of_class[torch.randperm(len(of_class), generator=stream)[:count]]] = True
    if not held.any():
        raise ConfigError(f"{key} = {share} holds no image out; give a larger share")
    return images[~held], images[held]


def normaliser(dataset: Dataset) -> Tensor:
    """Return factor and offset, (2, 1, channels, 1, 1), float32, on the data's device.

    ``x.float() * factor + offset`` has mean 0 and standard deviation 1 in every channel over all
    training images; a constant channel becomes 0. Sums are of whole numbers, hence exact on every
    device.
    """
    device = dataset.train.x.device
    whole = torch.zeros(dataset.input_shape[0], 256, dtype=torch.int64, device=device)
    for x in dataset.train.parts(_PART):
        for channel, counts in enumerate(whole):
            counts += torch.bincount(x[:, channel].flatten(), minlength=256)
    factors, offsets = [], []
    for counts in whole.tolist():
        n = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value**2 * count for value, count in enumerate(counts))
        spread = n * squares - total**2  # n² times the variance
        factors.append(n / spread**0.5 if spread else 1.0)
        offsets.append(-total / n * factors[-1])
    return torch.tensor([factors, offsets], device=device)[:, None, :, None, None]
