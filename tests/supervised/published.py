"""Tiny folders in the published formats, written value by value."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from rlplast.supervised.downloads import IMAGE_SETS, ImageSet

# name → (bytes of label per record, classes, files)
SHAPES = {
    "cifar10": (1, 10, [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]),
    "cifar100": (2, 100, ["train.bin", "test.bin"]),
}
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
ARCHIVES = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, count]).integers(0, 256, (count, *shape), np.uint8)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return header + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


def write_mnist(folder: Path, train: int = 20, test: int = 10, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        files = {
            f"{part}-images-idx3-ubyte": pictures(count, 28, 28),
            f"{part}-labels-idx1-ubyte": np.arange(count, dtype=np.uint8) % 10,
        }
        for name, array in files.items():
            data = gzip.compress(idx(array)) if packed else idx(array)
            (folder / (name + ".gz" * packed)).write_bytes(data)


def cifar_files(name: str, each: int = 10) -> dict[str, bytes]:
    """Every file of a set with `each` records, as bytes; CIFAR-100's training file 5 times that."""
    label_bytes, classes, files = SHAPES[name]
    out = {}
    for number, file in enumerate(files):
        out[file], count = b"", each * 5 if file == "train.bin" else each
        for i, picture in enumerate(pictures(count, 3072, seed=number)):
            label = (number + 3 * i) % classes
            coarse = [label // 5] if label_bytes == 2 else []
            out[file] += bytes([*coarse, label]) + picture.tobytes()
    return out


def write_cifar(folder: Path, name: str, each: int = 10) -> None:
    """The ``.bin`` files, in no folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in cifar_files(name, each).items():
        (folder / file).write_bytes(data)


def cifar_archive(folder: Path, name: str, each: int = 10, leave_out: str = "") -> Path:
    """The published ``.tar.gz``, with its folder and a text file that is no image."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARCHIVES[name]
    with tarfile.open(path, "w:gz") as tar:
        inner = tarfile.TarInfo(FOLDERS[name])
        inner.type = tarfile.DIRTYPE
        tar.addfile(inner)
        for file, data in {"readme.html": b"<html>", **cifar_files(name, each)}.items():
            if file != leave_out:
                member = tarfile.TarInfo(f"{FOLDERS[name]}/{file}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def write_corrupted(
    folder: Path,
    names: tuple[str, ...] = ("fog", "gaussian_noise"),
    count: int = 4,
    shape: tuple[int, int, int] = (32, 32, 3),
) -> None:
    """`count` images per severity; shape is height, width, channels as published."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "labels.npy", np.tile(np.arange(count, dtype=np.uint8), 5))
    for number, name in enumerate(names):
        np.save(folder / f"{name}.npy", pictures(5 * count, *shape, seed=number))


def write_tiny_imagenet(folder: Path, classes: int = 3, each: int = 2, val: int = 4) -> None:
    """Blocks of colour as JPEGs; the first class has grey ones; wnids.txt is not sorted."""
    wnids = [f"n{1000 + 7 * i:08d}" for i in range(classes)]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("".join(f"{w}\n" for w in reversed(wnids)))
    for k, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text("")
        for i in range(each):
            _jpeg(images / f"{wnid}_{i}.JPEG", 10 * k + i, "L" if k == 0 else "RGB")
    lines = []
    for i in range(val):
        _jpeg(folder / "val" / "images" / f"val_{i}.JPEG", 100 + i, "RGB")
        lines.append(f"val_{i}.JPEG\t{wnids[i % classes]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def _jpeg(path: Path, seed: int, mode: str, side: int = 64) -> None:
    blocks = pictures(1, 4, 4, 3, seed=seed)[0].repeat(side // 4, 0).repeat(side // 4, 1)
    Image.fromarray(blocks).convert(mode).save(path, "JPEG")


def zip_folder(folder: Path, path: Path) -> None:
    """Pack a folder as the ``.zip`` that holds it."""
    with zipfile.ZipFile(path, "w") as zipped:
        for file in sorted(folder.rglob("*")):
            zipped.write(file, file.relative_to(folder.parent))


def tiny_set(name: str, archives: Path, train: int, test: int, classes: int = 0) -> ImageSet:
    """A published set, but of the archives in a folder, with fewer images."""
    own = IMAGE_SETS[name]
    downloads = []
    for download in own.downloads:
        data = (archives / download.name).read_bytes()
        md5 = hashlib.md5(data).hexdigest()
        downloads.append(replace(download, size=len(data), md5=md5))
    classes = classes or own.classes
    return replace(own, downloads=tuple(downloads), train=train, test=test, classes=classes)
