"""Published binary formats: every value against a slow reader, and every kind of damage."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, load_data
from tests.supervised.published import (
    ARCHIVES,
    FOLDERS,
    SHAPES,
    cifar_archive,
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
    assert data.input_shape == (1, 28, 28)
    assert (data.num_classes, data.scale) == (10, 255)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("change", [-1, 1])
def test_idx_file_of_another_length_is_refused_with_both_lengths(
    tmp_path: Path, packed: bool, change: int
):
    write_mnist(tmp_path, packed=packed)
    whole = idx(np.zeros((20, 28, 28), np.uint8))
    bad = whole[:-1] if change < 0 else whole + b"\0"
    path = tmp_path / (TRAIN_IMAGES + ".gz" * packed)
    path.write_bytes(gzip.compress(bad) if packed else bad)
    with pytest.raises(DamagedFile, match=f"{path.name} has {len(bad)} bytes.*needs {len(whole)}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        idx(np.zeros(20, np.uint8))[:7],
        idx(np.zeros((20, 28, 28), np.uint8)),
        b"\0\0\x0d\x01" + idx(np.zeros(20, np.uint8))[4:],
        gzip.compress(idx(np.zeros(20, np.uint8))),
    ],
    ids=["empty", "half a header", "images", "floats", "gzip under the plain name"],
)
def test_file_that_is_no_idx_file_of_labels_is_refused(tmp_path: Path, content: bytes):
    write_mnist(tmp_path)
    (tmp_path / TRAIN_LABELS).write_bytes(content)
    with pytest.raises(DamagedFile, match=f"{TRAIN_LABELS} begins with .* 00000801 "):
        load("mnist", tmp_path)


def test_gzip_that_is_cut_is_refused(tmp_path: Path):
    write_mnist(tmp_path, packed=True)
    path = tmp_path / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    message = f"{path.name} cannot be read, {path.stat().st_size} .*`rlplast data` says from where"
    with pytest.raises(DamagedFile, match=message):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("train", "labels", "message"),
    [
        (20, np.zeros(19, np.uint8), "20 images and 19 labels"),
        (20, np.full(20, 10, np.uint8), "image 0 has label 10; allowed is 0 to 9"),
        (0, np.zeros(0, np.uint8), "at least one image"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    tmp_path: Path, train: int, labels: np.ndarray, message: str
):
    write_mnist(tmp_path, train=train)
    (tmp_path / TRAIN_LABELS).write_bytes(idx(labels))
    with pytest.raises(DamagedFile, match=message):
        load("mnist", tmp_path)


def test_missing_mnist_file_is_named_with_its_source(tmp_path: Path):
    write_mnist(tmp_path)
    (tmp_path / TRAIN_LABELS).unlink()
    with pytest.raises(ConfigError, match=f"{TRAIN_LABELS} .*not there.*https://.*{TRAIN_LABELS}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("part", ["train", "t10k"])
@pytest.mark.parametrize("shape", [(14, 28), (28, 14), (0, 28)])
def test_mnist_pictures_of_another_size_are_refused(
    tmp_path: Path, part: str, shape: tuple[int, int]
):
    write_mnist(tmp_path)
    count = 20 if part == "train" else 10
    (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((count, *shape), np.uint8)))
    what = rf"{part}.*no side of 0" if 0 in shape else rf"{part[:5]}.*\(1, {shape[0]}, {shape[1]}\)"
    with pytest.raises(DamagedFile, match=what):
        load("mnist", tmp_path)


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


@pytest.mark.parametrize("layout", ["files", "folder", "archive"])
@pytest.mark.parametrize("name", CIFARS)
def test_cifar_is_read_as_documented(tmp_path: Path, name: str, layout: str):
    label_bytes, classes, files = SHAPES[name]
    if layout == "archive":
        cifar_archive(tmp_path, name, each=3)
    else:
        write_cifar(tmp_path / (FOLDERS[name] if layout == "folder" else ""), name, each=3)
    data = load(name, tmp_path)
    raw = cifar_files(name, each=3)
    for images, parts in ((data.train, files[:-1]), (data.test, files[-1:])):
        xs, ys = slow_records(b"".join(raw[p] for p in parts), label_bytes)
        np.testing.assert_array_equal(images.x.numpy(), np.stack(xs))
        assert images.y.tolist() == ys
    assert (data.num_classes, data.scale, data.input_shape) == (classes, 255, (3, 32, 32))
    if layout == "archive":  # nothing was extracted beside it
        assert [p.name for p in tmp_path.iterdir()] == [ARCHIVES[name]]


@pytest.mark.parametrize("name", CIFARS)
@pytest.mark.parametrize("size", [0, 1, 5000])
def test_cifar_file_cut_inside_a_record_is_refused_with_both_lengths(
    tmp_path: Path, name: str, size: int
):
    label_bytes, _, files = SHAPES[name]
    write_cifar(tmp_path, name, each=3)
    (tmp_path / files[0]).write_bytes(b"\0" * size)
    record = label_bytes + 3072
    needed = max(1, -(-size // record)) * record
    with pytest.raises(DamagedFile, match=rf"{files[0]} has {size} bytes; .*{record}.*{needed}"):
        load(name, tmp_path)


def test_cifar_file_cut_between_records_is_refused(tmp_path: Path):
    write_cifar(tmp_path, "cifar10", each=3)
    path = tmp_path / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[: 2 * 3073])
    with pytest.raises(DamagedFile, match=r"'data_batch_4.bin': 2"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize(
    ("name", "file", "at"),
    [("cifar10", "test_batch.bin", 0), ("cifar100", "test.bin", 0), ("cifar100", "train.bin", 1)],
)
def test_cifar_with_another_share_of_test_images_is_refused(
    tmp_path: Path, name: str, file: str, at: int, change: int
):
    write_cifar(tmp_path, name, each=3)
    path, record = tmp_path / file, SHAPES[name][0] + 3072
    data = path.read_bytes()
    path.write_bytes(data[:-record] if change < 0 else data + data[:record])
    train, test = (15 + change, 3) if at else (15, 3 + change)
    with pytest.raises(DamagedFile, match=rf"{train} training images and {test} in test"):
        load(name, tmp_path)


def test_cifar_label_out_of_range_is_refused(tmp_path: Path):
    write_cifar(tmp_path, "cifar10", each=3)
    path = tmp_path / "test_batch.bin"
    data = bytearray(path.read_bytes())
    data[3073] = 10
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="image 1 has label 10; allowed is 0 to 9"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("name", CIFARS)
def test_missing_cifar_file_is_named_with_its_source(tmp_path: Path, name: str):
    archive = ARCHIVES[name]
    with pytest.raises(ConfigError, match=f"{archive} is not there; .*https://.*{archive}"):
        load(name, tmp_path)
    write_cifar(tmp_path, name, each=3)
    last = SHAPES[name][2][-1]
    (tmp_path / last).unlink()
    with pytest.raises(ConfigError, match=f"{last} is not there; .*https://.*{archive}"):
        load(name, tmp_path)


class Bomb:
    """What runs code as soon as somebody unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", CIFARS)
def test_python_version_of_cifar_is_refused_unread(tmp_path: Path, name: str):
    file = "data_batch_1" if name == "cifar10" else "train"
    (tmp_path / file).write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    with pytest.raises(ConfigError, match=rf"binary.tar.gz is not there, and {file} is the python"):
        load(name, tmp_path)
    assert not (tmp_path / "trace").exists()


def test_archive_that_is_cut_or_altered_is_refused(tmp_path: Path):
    path = cifar_archive(tmp_path, "cifar100", each=3)
    data = path.read_bytes()
    half = len(data) // 2
    altered = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
    for damaged in (b"", data[:5], data[: half // 2], data[: -half // 8], data[:-1], altered):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=f"{path.name} cannot be read, {len(damaged)} bytes"):
            load("cifar100", tmp_path)


def test_archive_without_one_of_its_files_is_refused(tmp_path: Path):
    path = cifar_archive(tmp_path, "cifar10", each=3, leave_out="data_batch_3.bin")
    with pytest.raises(DamagedFile, match=rf"{path.name} holds no data_batch_3.bin"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", ["nowhere", "test.bin"])
def test_archive_with_a_link_in_place_of_a_file_is_refused(
    tmp_path: Path, kind: bytes, target: str
):
    path = cifar_archive(tmp_path, "cifar100", each=3, leave_out="test.bin")
    with gzip.open(path) as packed:
        raw = io.BytesIO(packed.read())
    with tarfile.open(fileobj=raw, mode="a") as tar:
        link = tarfile.TarInfo("cifar-100-binary/test.bin")
        link.type, link.linkname = kind, f"cifar-100-binary/{target}"
        tar.addfile(link)
    path.write_bytes(gzip.compress(raw.getvalue()))
    with pytest.raises(DamagedFile, match=rf"{path.name} holds no test.bin"):
        load("cifar100", tmp_path)
