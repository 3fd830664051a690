"""CIFAR-10-C: which images are which severity, and every kind of damage."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, load_data
from tests.supervised.published import write_cifar, write_corrupted


def load(folder: Path) -> Dataset:
    write_cifar(folder / "clean", "cifar10", each=3)
    config = DataConfig("cifar10", str(folder / "clean"), corrupted=str(folder / "C"))
    return load_data(config, 0)


@pytest.fixture
def fog(tmp_path: Path) -> Path:
    """A folder of labels and one corruption."""
    write_corrupted(tmp_path / "C", ("fog",))
    return tmp_path / "C"


def test_severities_are_fifths_of_each_file(tmp_path: Path):
    write_corrupted(tmp_path / "C", ("gaussian_noise", "fog"), count=4)
    sets = load(tmp_path).to("cpu").corrupted
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


def test_the_fifteen_of_the_benchmark_count_and_those_for_tuning_do_not(tmp_path: Path):
    fifteen = (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    ).split()
    tuning = ("gaussian_blur", "saturate", "spatter", "speckle_noise")
    write_corrupted(tmp_path / "C", (*fifteen, *tuning), count=1)
    assert {key.split("/")[0] for key in load(tmp_path).corrupted} == set(fifteen)


@pytest.mark.parametrize("name", ["Fog", "gaussian-noise", "fog_copy"])
def test_a_file_that_is_no_corruption_of_the_benchmark_is_refused(tmp_path: Path, name: str):
    write_corrupted(tmp_path / "C", ("snow", name))
    with pytest.raises(
        ConfigError, match=rf"{name}.npy is no corruption .* allowed are brightness"
    ):
        load(tmp_path)


def test_images_are_as_large_as_the_clean_ones_whatever_the_set(tmp_path: Path):
    write_corrupted(tmp_path, ("fog",), shape=(8, 8, 1))
    sets = load_data(DataConfig(corrupted=str(tmp_path)), 0).corrupted
    assert sets["fog/5"]().x.shape == (4, 1, 8, 8)


@pytest.mark.parametrize("gone", ["labels.npy", "fog.npy"])
def test_missing_files_are_named_with_their_source(tmp_path: Path, fog: Path, gone: str):
    (fog / gone).unlink()
    with pytest.raises(ConfigError, match=r"data.corrupted.*labels.npy .*https://zenodo"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("fog", np.zeros((19, 32, 32, 3), np.uint8), r"shape \(19, 32, 32, 3\); needed .*\(20, 32"),
        ("fog", np.zeros((20, 3, 32, 32), np.uint8), r"shape \(20, 3, 32, 32\); needed is uint8"),
        ("fog", np.zeros((20, 32, 32, 3), np.float32), r"float32 .* needed is uint8"),
        ("labels", np.zeros(19, np.int64), r"shape \(19,\); .* multiple of 5"),
        ("labels", np.zeros(20), "float64 .* whole numbers"),
        ("labels", np.zeros((20, 1), np.int64), r"shape \(20, 1\)"),
        ("labels", np.full(20, 10), "image 0 has label 10"),
        ("labels", np.full(20, -1), "image 0 has label -1"),
        ("labels", np.arange(20) % 10, "its 5 parts, one per severity, differ"),
        ("labels", np.array([0, 1, 2, 3] * 4 + [0, 1, 2, 4]), "its 5 parts"),
    ],
)
def test_array_that_does_not_fit_is_refused(
    tmp_path: Path, fog: Path, file: str, array: np.ndarray, message: str
):
    np.save(fog / f"{file}.npy", array)
    with pytest.raises(DamagedFile, match=f"{file}.npy.*{message}"):
        load(tmp_path)


def replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole.replace(old, new, 1)


DAMAGES: list[Callable[[bytes], bytes]] = [
    *(lambda whole, kept=kept: whole[:kept] for kept in (0, 20, 129, -1)),
    replace(b"}", b" "),  # tokenize.TokenError
    replace(b"{", b"}"),
    replace(b"'descr'", b"'depth'"),
    replace(b"'|u1'", b"[[]] "),
    replace(b"'|u1'", b"[()] "),
    replace(b"'shape': (20", b"'shape': (-9"),
    replace(b"'shape': (20", b"'shape': ('a"),
]


@pytest.mark.parametrize("file", ["fog", "labels"])
def test_file_that_is_cut_or_has_a_damaged_header_is_refused(tmp_path: Path, fog: Path, file: str):
    path = fog / f"{file}.npy"
    whole = path.read_bytes()
    for damage in DAMAGES:
        damaged = damage(whole)
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=rf"{file}.npy cannot be read, {len(damaged)} bytes"):
            load(tmp_path)


def test_pickled_objects_and_broken_links_are_refused(tmp_path: Path, fog: Path):
    (fog / "snow.npy").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DamagedFile, match=r"snow.npy cannot be read, 0 bytes"):
        load(tmp_path)
    np.save(fog / "labels.npy", np.array([{}] * 20), allow_pickle=True)
    with pytest.raises(DamagedFile, match=r"labels.npy cannot be read"):
        load(tmp_path)
