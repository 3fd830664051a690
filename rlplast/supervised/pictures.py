"""Image sets that come as picture files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.optional import import_optional
from rlplast.core.validation import Section
from rlplast.supervised.formats import Images, checked_images, checked_labels, missing
from rlplast.supervised.stored import StoredPictures

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "HuggingFaceConfig",
    "read_huggingface",
    "read_tiny_imagenet",
    "stored_images",
]

TINY = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_SIDE = 64  # pixels of Tiny-ImageNet
_GREY = ("1", "L", "LA")
_MODES = (*_GREY, "P", "RGB", "RGBA", "CMYK")  # 8 bits at most: no other becomes uint8 unchanged


@dataclass
class HuggingFaceConfig(Section):
    """Where an image set of the Hugging Face hub, or a local one, is found.

    Attributes:
        path: first argument of ``datasets.load_dataset``: a name on the hub, or a local folder.
        image: column of the images.
        label: column of the labels, which are whole numbers.
        train: split of the training images.
        test: split of the test images.
        size: side in pixels. The shorter side of an image is resized to it (bicubic), and the
            middle of the longer side is kept. null if all images have one size.
        in_memory: whether all pixels are kept in memory, on the run's device. If not, pictures are
            decoded when a batch asks for them, in as many threads as the run has. The numbers are
            the same. Checkpoints then know the data by their labels and 256 of the pictures.
    """

    path: str | None = None
    image: str = "image"
    label: str = "label"
    train: str = "train"
    test: str = "test"
    size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    in_memory: bool = True


def read_tiny_imagenet(folder: Path) -> tuple[Images, Images, int]:
    """Return training images, test images and the number of classes of Tiny-ImageNet.

    `folder` is the unpacked ``tiny-imagenet-200``, or holds it. Labels follow the sorted WordNet
    ids. The test images are the published validation images, since the published test images have
    no labels.

    Raises:
        ConfigError: naming a file that is missing.
        DamagedFile: naming a picture that is cut or of another size, or a list that is wrong.
    """
    inner = folder / "tiny-imagenet-200"
    root = inner if inner.is_dir() else folder
    wnids, annotations = root / "wnids.txt", root / "val" / "val_annotations.txt"
    for path in (wnids, annotations):
        if not path.is_file():
            raise missing(folder, str(path.relative_to(root)), TINY, "tiny_imagenet")
    classes = _classes(wnids)
    train = [sorted((root / "train" / wnid / "images").glob("*.JPEG")) for wnid in classes]
    least, most = min(train, key=len), max(train, key=len)
    if not least or len(least) < len(most):
        wnid = list(classes)[train.index(least)]
        raise DamagedFile(
            f"{root / 'train' / wnid / 'images'} has {len(least)} JPEGs, another class "
            f"{len(most)}; needed are equally many: unpack {TINY} again"
        )
    paths = [path for of_class in train for path in of_class]
    labels = [label for label, of_class in enumerate(train) for _ in of_class]
    return (
        _jpegs(paths, labels, len(classes), root / "train"),
        _jpegs(*_annotated(annotations, classes), len(classes), annotations),
        len(classes),
    )


def _classes(path: Path) -> dict[str, int]:
    """Return the label of each WordNet id in a file of one a line."""
    wnids = sorted(set(path.read_text("utf-8", "replace").split()))
    if not wnids:
        raise DamagedFile(f"{path} is empty; needed is one WordNet id a line: unpack {TINY} again")
    return {wnid: i for i, wnid in enumerate(wnids)}


def _annotated(annotations: Path, classes: Mapping[str, int]) -> tuple[list[Path], list[int]]:
    """Return the paths and labels in a file of lines ``name, WordNet id, box``."""
    paths, labels = [], []
    for number, line in enumerate(annotations.read_text("utf-8", "replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in classes:
            raise DamagedFile(
                f"{annotations}, line {number}: class {wnid!r} is not in wnids.txt: unpack {TINY} "
                "again"
            )
        paths.append(annotations.parent / "images" / name)
        labels.append(classes[wnid])
    present = sorted((annotations.parent / "images").glob("*.JPEG"))
    if sorted(paths) != present:
        raise DamagedFile(
            f"{annotations} lists {len(paths)} pictures, and images beside it has {len(present)}; "
            f"needed is each picture once: unpack {TINY} again"
        )
    return paths, labels


def _jpegs(paths: Sequence[Path], labels: list[int], num_classes: int, where: Path) -> Images:
    from PIL import Image

    x = np.empty((len(paths), 3, _SIDE, _SIDE), np.uint8)
    for i, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                pixels = _pixels(picture, "RGB")
        except (OSError, SyntaxError) as error:
            raise DamagedFile(
                f"{path} is no whole picture ({error}): unpack {TINY} again"
            ) from error
        if pixels.shape != x.shape[1:]:
            raise DamagedFile(f"{path} has shape {pixels.shape}; needed is {x.shape[1:]}")
        x[i] = pixels
    return checked_images(x, np.array(labels, np.int64), num_classes, where)


def _pixels(picture: "Image", mode: str) -> np.ndarray:
    """Return a picture's values (channels, height, width), uint8."""
    values = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def read_huggingface(config: HuggingFaceConfig) -> tuple[Images, Images, int]:
    """Return training images, test images and the number of classes: the largest label plus 1.

    Raises:
        ConfigError: if the library, the set, a split or a column is missing; of pictures and labels
            as of `stored_images`.
        DamagedFile: for a label below 0, or a split without rows.
    """
    if config.path is None:
        raise ConfigError(
            "data.huggingface.path is not set: data.name = 'huggingface' needs the name of a set "
            "on the hub, such as uoft-cs/cifar10, or a local folder"
        )
    datasets = import_optional("datasets", "vision")
    try:
        tables = [datasets.load_dataset(config.path, split=s) for s in (config.train, config.test)]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"data.huggingface.path = {config.path!r} cannot be loaded: {error}"
        ) from error
    train, test = (stored_images(table, config) for table in tables)
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ConfigError(
            f"data.huggingface.path = {config.path!r}: training pictures have shape "
            f"{tuple(train.x.shape[1:])}, test pictures {tuple(test.x.shape[1:])}; allowed is one"
        )
    num_classes = int(max(train.y.max(), test.y.max())) + 1
    if config.in_memory:
        train, test = (Images(images.pixels(), images.y) for images in (train, test))
    return train, test, num_classes


def stored_images(table: Any, config: HuggingFaceConfig) -> Images:
    """Return the pictures and labels of a table; pictures are decoded when they are asked for.

    They have one channel if all are grey, else three; transparency is left out. `table` is what
    ``datasets.load_dataset`` returns: rows by number, columns by name.

    Raises:
        ConfigError: for a missing column, a label that is no whole number; once it is decoded, for
            a picture of another size, of more than 8 bits or another colour space.
        DamagedFile: for a label below 0, or no row at all.
    """
    where = f"data.huggingface.path = {config.path!r}"
    pictures = (_picture_of_row(table[i], config, where) for i in range(len(table)))
    first = next(pictures, None)
    if first is None:
        raise DamagedFile(f"{where}: no image; needed is at least one")
    grey = first.mode in _GREY and all(picture.mode in _GREY for picture in pictures)
    mode = "L" if grey else "RGB"  # known after the first picture in colour
    labels = [_label(label, config, where) for label in table[config.label]]
    one = _pixels(first, mode).shape

    def read(row: int) -> np.ndarray:
        pixels = _pixels(_picture_of_row(table[row], config, where), mode)
        if pixels.shape != one:
            raise ConfigError(
                f"{where}: picture {row} has shape {pixels.shape}, picture 0 {one}; allowed is one "
                "size, or data.huggingface.size, to which they are scaled and cut"
            )
        return pixels

    y = checked_labels(np.array(labels, np.int64), len(table), None, where)
    return Images(StoredPictures(read, torch.arange(len(y)), one), y)


def _picture_of_row(row: Mapping[str, Any], config: HuggingFaceConfig, where: str) -> "Image":
    from PIL import Image, ImageOps

    for column in (config.image, config.label):
        if column not in row:
            raise ConfigError(f"{where}: no column {column!r}; there are {', '.join(row)}")
    picture, where = row[config.image], f"{where}: column {config.image!r}"
    if not isinstance(picture, Image.Image):
        raise ConfigError(f"{where} has {type(picture).__name__}; allowed are pictures (PIL)")
    if picture.mode not in _MODES:
        raise ConfigError(
            f"{where} has a picture of mode {picture.mode}; allowed are {', '.join(_MODES)}: "
            "convert it to 8 bits a channel first"
        )
    if config.size is None:
        return picture
    whole = picture.convert("L" if picture.mode in _GREY else "RGB")  # palettes have no mean
    return ImageOps.fit(whole, (config.size, config.size), Image.Resampling.BICUBIC)


def _label(label: object, config: HuggingFaceConfig, where: str) -> int:
    if type(label) is not int:  # true is an int too
        raise ConfigError(
            f"{where}: label {label!r} in column {config.label!r}; allowed are whole numbers"
        )
    return label
