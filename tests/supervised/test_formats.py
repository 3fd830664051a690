"""Published binary formats: every value against a slow reader, and every kind of damage."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, load_data
from tests.refused import check_refused
from tests.supervised.published import (
    ARCHIVES,
    FOLDERS,
    SHAPES,
    cifar_files,
    idx,
    write_cifar,
    write_mnist,
)

CIFARS = sorted(SHAPES)
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"


def load(name: str, folder: Path) -> Dataset:
    return load_data(DataConfig(name=name, folder=str(folder)), 0)


# MNIST.


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_as_documented(tmp_path: Path, packed: bool):
    write_mnist(tmp_path / "given", train=4, test=3, packed=packed)
    write_mnist(tmp_path / "plain", train=4, test=3)
    data = load("mnist", tmp_path / "given")
    for images, part, count in ((data.train, "train", 4), (data.test, "t10k", 3)):
        raw = (tmp_path / "plain" / f"{part}-images-idx3-ubyte").read_bytes()
        assert images.x.shape == (count, 1, 28, 28)
        for i, row, column in np.ndindex(count, 28, 28):
            assert images.x[i, 0, row, column] == raw[16 + i * 784 + row * 28 + column]
        labels = (tmp_path / "plain" / f"{part}-labels-idx1-ubyte").read_bytes()
        assert images.y.tolist() == list(labels[8:])
    assert (data.input_shape, data.num_classes) == ((1, 28, 28), 10)


IMAGES, LABELS = idx(np.zeros((20, 28, 28), np.uint8)), idx(np.zeros(20, np.uint8))
NO_LABELS = f"{TRAIN_LABELS} begins with"
MNIST: list[tuple[tuple[str, bytes], str]] = [
    (
        (TRAIN_IMAGES, IMAGES[:-1]),
        f"{len(IMAGES) - 1} bytes; its header, shape [20, 28, 28], needs",
    ),
    ((f"{TRAIN_IMAGES}.gz", gzip.compress(IMAGES)[:-20]), f"{TRAIN_IMAGES}.gz cannot be read"),
    ((TRAIN_LABELS, b""), NO_LABELS),
    ((TRAIN_LABELS, b"\0\0\x0d\x01" + LABELS[4:]), NO_LABELS),  # floats
    ((TRAIN_LABELS, idx(np.zeros(19, np.uint8))), "20 images and 19 labels"),
    ((TRAIN_LABELS, idx(np.full(20, 10, np.uint8))), "image 0 has label 10"),
    ((TRAIN_IMAGES, idx(np.zeros((20, 0, 28), np.uint8))), "no side of 0"),
    (("t10k-images-idx3-ubyte", idx(np.zeros((10, 28, 14), np.uint8))), "(1, 28, 14)"),
]


def test_mnist_files_that_are_damaged_or_do_not_fit_are_named(tmp_path: Path):
    def load_with(changed: tuple[str, bytes]) -> None:
        name, content = changed
        write_mnist(tmp_path)
        if name.endswith(".gz"):
            (tmp_path / name.removesuffix(".gz")).unlink()
        (tmp_path / name).write_bytes(content)
        load("mnist", tmp_path)

    check_refused(load_with, MNIST, DamagedFile)
    write_mnist(tmp_path / "none", train=0)
    with pytest.raises(DamagedFile, match="at least one image"):
        load("mnist", tmp_path / "none")
    (tmp_path / "none" / TRAIN_LABELS).unlink()
    with pytest.raises(ConfigError, match=f"{TRAIN_LABELS} .*not there.*https://.*{TRAIN_LABELS}"):
        load("mnist", tmp_path / "none")


# CIFAR.


def slow_records(data: bytes, label_bytes: int) -> tuple[list[np.ndarray], list[int]]:
    """The documented layout, one value after another."""
    xs, ys = [], []
    for at in range(label_bytes, len(data), label_bytes + 3072):
        ys.append(data[at - 1])
        xs.append(np.zeros((3, 32, 32), np.uint8))
        for i in range(3072):
            xs[-1][i // 1024, i % 1024 // 32, i % 32] = data[at + i]
    return xs, ys


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", CIFARS)
def test_cifar_is_read_as_documented(tmp_path: Path, name: str, inner: bool):
    label_bytes, classes, files = SHAPES[name]
    write_cifar(tmp_path / (FOLDERS[name] if inner else ""), name, each=3)
    data = load(name, tmp_path)
    raw = cifar_files(name, each=3)
    for images, parts in ((data.train, files[:-1]), (data.test, files[-1:])):
        xs, ys = slow_records(b"".join(raw[p] for p in parts), label_bytes)
        np.testing.assert_array_equal(images.x.numpy(), np.stack(xs))
        assert images.y.tolist() == ys
    assert (data.num_classes, data.input_shape) == (classes, (3, 32, 32))


@pytest.mark.parametrize("name", CIFARS)
def test_cifar_files_that_are_cut_or_altered_or_absent_are_named(tmp_path: Path, name: str):
    label_bytes, classes, files = SHAPES[name]
    last, record, raw = files[-1], label_bytes + 3072, cifar_files(name, each=3)

    def load_with(changed: tuple[str, bytes]) -> None:
        write_cifar(tmp_path, name, each=3)
        (tmp_path / changed[0]).write_bytes(changed[1])
        load(name, tmp_path)

    label = bytearray(raw[last])
    label[record + label_bytes - 1] = classes
    rows = [
        ((last, b"\0" * size), f"{last} has {size} bytes; needed are {record} for each image")
        for size in (0, 1, 5000)
    ]
    rows.append(((last, bytes(label)), f"image 1 has label {classes}; allowed"))
    check_refused(load_with, rows, DamagedFile)
    (tmp_path / last).unlink()
    with pytest.raises(ConfigError, match=f"{last} is not there; .*https://.*{ARCHIVES[name]}"):
        load(name, tmp_path)
