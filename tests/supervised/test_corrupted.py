"""CIFAR-10-C: which images are which severity, and every kind of damage."""

from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, load_data
from tests.refused import check_refused
from tests.supervised.published import write_cifar, write_corrupted


def load(folder: Path) -> Dataset:
    """Read the corrupted images in a folder, with clean ones beside it."""
    if not (folder.parent / "clean").exists():
        write_cifar(folder.parent / "clean", "cifar10", each=3)
    config = DataConfig("cifar10", str(folder.parent / "clean"), corrupted=str(folder))
    return load_data(config, 0)


@pytest.fixture
def fog(tmp_path: Path) -> Path:
    """A folder of labels and one corruption."""
    write_corrupted(tmp_path / "C", ("fog",))
    return tmp_path / "C"


def test_severities_are_fifths_of_each_file(tmp_path: Path):
    write_corrupted(tmp_path / "C", ("gaussian_noise", "fog"), count=4)
    sets = load(tmp_path / "C").to("cpu").corrupted
    assert set(sets) == {f"{n}/{s}" for n in ("fog", "gaussian_noise") for s in range(1, 6)}
    labels = np.load(tmp_path / "C" / "labels.npy")
    for key, read in sets.items():
        name, severity = key.split("/")
        array, images = np.load(tmp_path / "C" / f"{name}.npy"), read()
        assert len(images) == 4
        for i in range(4):
            at = (int(severity) - 1) * 4 + i
            assert images.y[i] == labels[at]
            for channel in range(3):
                np.testing.assert_array_equal(images.x[i, channel], array[at, :, :, channel])


def test_the_fifteen_of_the_benchmark_count_and_nothing_else(tmp_path: Path):
    fifteen = (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    ).split()
    write_corrupted(tmp_path / "C", (*fifteen, "gaussian_blur", "fog_copy"), count=1)
    assert {key.split("/")[0] for key in load(tmp_path / "C").corrupted} == set(fifteen)
    rows = []
    for gone in ("labels", "fog"):
        write_corrupted(tmp_path / gone, ("fog",))
        (tmp_path / gone / f"{gone}.npy").unlink()
        rows.append((tmp_path / gone, "https://zenodo"))
    check_refused(load, rows)


def test_images_are_as_large_as_the_clean_ones_whatever_the_set(tmp_path: Path):
    write_corrupted(tmp_path, ("fog",), shape=(8, 8, 1))
    sets = load_data(DataConfig(corrupted=str(tmp_path)), 0).corrupted
    assert sets["fog/5"]().x.shape == (4, 1, 8, 8)


ARRAYS: list[tuple[str, np.ndarray, str]] = [
    ("fog", np.zeros((19, 32, 32, 3), np.uint8), "shape (19, 32, 32, 3)"),
    ("fog", np.zeros((20, 3, 32, 32), np.uint8), "shape (20, 3, 32, 32)"),
    ("fog", np.zeros((20, 32, 32, 3), np.float32), "float32"),
    ("labels", np.zeros(19, np.int64), "multiple of 5"),
    ("labels", np.zeros(20), "float64"),
    ("labels", np.zeros((20, 1), np.int64), "shape (20, 1)"),
    ("labels", np.full(20, 10), "image 0 has label 10"),
    ("labels", np.full(20, -1), "image 0 has label -1"),
]


@pytest.mark.parametrize("file", ["fog", "labels"])
def test_file_that_does_not_fit_or_is_cut_or_holds_pickles_is_refused(fog: Path, file: str):
    path = fog / f"{file}.npy"
    whole = path.read_bytes()

    def load_with(content: np.ndarray | bytes) -> None:
        if isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            path.write_bytes(content)
        load(fog)

    rows = [(array, words) for name, array, words in ARRAYS if name == file]
    rows.append((np.array([{}] * 20), f"{file}.npy cannot be read"))
    cut = [whole[:kept] for kept in (0, 20, 129, len(whole) - 1)]
    for damaged in (*cut, whole.replace(b"}", b" ", 1), whole.replace(b"'descr'", b"'depth'", 1)):
        rows.append((damaged, f"{file}.npy cannot be read, {len(damaged)} bytes"))
    check_refused(load_with, rows, DamagedFile)
