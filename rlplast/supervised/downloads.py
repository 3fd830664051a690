"""The published image sets: where they come from, and whether a folder has one.

Sizes and checksums are the publishers' (those of MNIST torchvision's).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any

from rlplast.core.downloads import Download, Finding, Published, find_download, unpack
from rlplast.core.errors import DamagedFile, RlplastError
from rlplast.supervised.corrupted import CORRUPTIONS, read_corrupted
from rlplast.supervised.data import DataConfig, load_data
from rlplast.supervised.formats import CIFAR10, CIFAR100, CIFAR_URL, MNIST_URL, CifarLayout
from rlplast.supervised.pictures import TINY
from rlplast.supervised.sizes import KNOWN

__all__ = ["IMAGE_SETS", "ImageSet", "check_images", "config_keys"]


@dataclass(frozen=True, kw_only=True)
class ImageSet(Published):
    """A published set of images."""

    train: int  # images; 0 for a set of test images alone
    test: int  # images; of corrupted ones, those of one severity
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    loose: tuple[str, ...] = ()  # globs in the folder itself, if what was in the archive lies there


def _mnist() -> ImageSet:
    files = {
        "train-images-idx3-ubyte": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    }
    return ImageSet(
        "60,000 + 10,000 grey digits of 28 × 28, 10 classes",
        "data.name: mnist",
        "CC BY-SA 3.0 (Y. LeCun and C. Cortes)",
        "http://yann.lecun.com/exdb/mnist/",
        tuple(Download(f"{n}.gz", f"{MNIST_URL}{n}.gz", *known, n) for n, known in files.items()),
        **KNOWN["mnist"]._asdict(),
    )


def _cifar(layout: CifarLayout, size: int, md5: str) -> ImageSet:
    classes, url = layout.num_classes, f"{CIFAR_URL}{layout.archive}"
    return ImageSet(
        f"50,000 + 10,000 photographs of 32 × 32, {classes} classes",
        f"data.name: cifar{classes}",
        "none stated; its page asks to cite Krizhevsky 2009",
        f"{CIFAR_URL}cifar.html",
        (Download(layout.archive, url, size, md5, layout.folder),),
        **KNOWN[layout.name]._asdict(),
        loose=("*.bin",),
    )


def _corrupted(classes: int, record: int, size: int, md5: str) -> ImageSet:
    folder, page = f"CIFAR-{classes}-C", f"https://zenodo.org/records/{record}"
    url = f"{page}/files/{folder}.tar?download=1"
    return ImageSet(
        f"CIFAR-{classes}'s test images with {len(CORRUPTIONS)} corruptions of 5 severities",
        "data.corrupted",
        "CC BY 4.0 (Hendrycks and Dietterich 2019)",
        page,
        (Download(f"{folder}.tar", url, size, md5, folder),),
        **KNOWN[f"cifar{classes}"]._replace(train=0)._asdict(),
        loose=("*.npy",),
    )


IMAGE_SETS = {
    "mnist": _mnist(),
    "cifar10": _cifar(CIFAR10, 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": _cifar(CIFAR100, 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
    "tiny_imagenet": ImageSet(
        "100,000 + 10,000 photographs of 64 × 64, 200 classes",
        "data.name: tiny_imagenet",
        "ImageNet's terms: research and education, not commercial",
        "http://cs231n.stanford.edu/",
        (
            Download(
                "tiny-imagenet-200.zip",
                TINY,
                248_100_043,
                "90528d7ca1a48142e341f4ef8d21d0de",
                "tiny-imagenet-200",
            ),
        ),
        **KNOWN["tiny_imagenet"]._asdict(),
        loose=("wnids.txt", "train", "val"),
    ),
    "cifar10_c": _corrupted(10, 2535967, 2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    "cifar100_c": _corrupted(100, 3555552, 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3"),
}


def check_images(name: str, root: Path) -> Iterator[Finding]:
    """Yield what a folder has of a set; the last finding is what the reader of training says.

    An archive that is whole and not unpacked yet is unpacked beside itself.

    Raises:
        RlplastError: if an archive cannot be unpacked.
        PermissionError: if a file may not be read.
    """
    published = IMAGE_SETS[name]
    usable = True
    if not any(any(root.glob(pattern)) for pattern in published.loose):
        for download in published.downloads:
            if lexists(root / download.unpacked):  # a link that leads nowhere stays too
                continue
            finding = _archive(download, root)
            usable &= not finding.remedy
            yield finding
    if usable:
        yield _read(name, root)


def _archive(download: Download, root: Path) -> Finding:
    finding = find_download(root / download.name, download)
    if finding.remedy:
        return finding
    unpack(root / download.name, download.unpacked)
    return Finding(finding.what, f"{finding.state}; unpacked as {download.unpacked}")


def _read(name: str, root: Path) -> Finding:
    """Return what the reader of training reads, against what was published."""
    published = IMAGE_SETS[name]
    try:
        counts = _counts(name, root, published)
    except RlplastError as error:
        if isinstance(error.__cause__, PermissionError):  # of data that may well be whole
            raise error.__cause__ from None
        return Finding(str(root), f"cannot be used: {error}", _again(published, root))
    needed = (published.train, published.test, published.shape)
    words = "{:,} training and {:,} test images of (channels, height, width) {}"
    if counts != needed:
        state = f"has {words.format(*counts)}; published are {words.format(*needed)}"
        return Finding(str(root), state, _again(published, root))
    return Finding(str(root), f"has {words.format(*counts)}")


def _counts(name: Any, root: Path, published: ImageSet) -> tuple[int, int, tuple[int, int, int]]:
    if published.train:
        data = load_data(DataConfig(name=name, folder=str(root)), 0)
        return len(data.train), len(data.test), data.input_shape
    folder = _corrupted_folder(root, published)
    readers = read_corrupted(folder, published.shape, published.classes)
    absent = sorted(CORRUPTIONS - {key.split("/")[0] for key in readers})
    if absent:
        raise DamagedFile(f"{folder} has no {', '.join(absent)} of {len(CORRUPTIONS)} corruptions")
    return 0, len(next(iter(readers.values()))()), published.shape  # all have those of labels.npy


def _corrupted_folder(root: Path, published: ImageSet) -> Path:
    inner = root / published.downloads[0].unpacked
    return inner if inner.is_dir() else root


def _again(published: ImageSet, root: Path) -> str:
    unpacked = [str(root / d.unpacked) for d in published.downloads if lexists(root / d.unpacked)]
    old = f"delete {', '.join(unpacked) or 'what is there'}"
    absent = [d.command(root) for d in published.downloads if not (root / d.name).exists()]
    fetch = "; ".join(absent) or "the archive is there"
    return f"{old}; {fetch}; then give this command again, which unpacks it"


def config_keys(name: str, root: Path) -> str:
    """Return the options of a run that reads a set from a folder."""
    published = IMAGE_SETS[name]
    if not published.train:
        return f"--data.corrupted {_corrupted_folder(root, published)}"
    return f"--data.name {name} --data.folder {root}"
