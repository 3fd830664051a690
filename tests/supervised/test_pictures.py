"""Tiny-ImageNet and Hugging Face sets: values, labels, and what is refused."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, HuggingFaceConfig, load_data
from rlplast.supervised.formats import Images
from rlplast.supervised.pictures import stored_images
from tests.refused import check_refused
from tests.supervised.published import pictures, write_tiny_imagenet


def tiny(folder: Path) -> Dataset:
    return load_data(DataConfig(name="tiny_imagenet", folder=str(folder)), 0)


def assert_shows(x: Tensor, values: Any) -> None:
    """Check that images, channels first, have the values of pictures, channels last."""
    np.testing.assert_array_equal(x.movedim(-3, -1).numpy(), np.asarray(values))


@pytest.mark.parametrize("inner", ["", "tiny-imagenet-200"])
def test_tiny_imagenet_is_read_class_by_class_in_sorted_order(tmp_path: Path, inner: str):
    write_tiny_imagenet(tmp_path / inner, classes=3, each=2, val=5)
    data = tiny(tmp_path)
    train, at = tmp_path / inner / "train", 0
    for label, wnid in enumerate(sorted(os.listdir(train))):
        for name in sorted(os.listdir(train / wnid / "images")):
            assert_shows(
                data.train.x[at], Image.open(train / wnid / "images" / name).convert("RGB")
            )
            assert data.train.y[at] == label
            at += 1
    assert len(data.train) == at == 6
    assert data.test.y.tolist() == [0, 1, 2, 0, 1]
    for i, x in enumerate(data.test.x):
        assert_shows(x, Image.open(tmp_path / inner / "val" / "images" / f"val_{i}.JPEG"))
    assert (data.num_classes, data.input_shape) == (3, (3, 64, 64))


def test_lists_of_tiny_imagenet_that_are_missing_or_wrong_are_named(tmp_path: Path):
    write_tiny_imagenet(tmp_path, val=4)
    wnids, annotations = "wnids.txt", "val/val_annotations.txt"
    before = {name: (tmp_path / name).read_text() for name in (wnids, annotations)}
    whole = before[annotations]
    lines = whole.splitlines(keepends=True)

    def load_with(changed: tuple[str, str]) -> None:
        for name, content in [*before.items(), changed]:
            (tmp_path / name).write_text(content, encoding="latin-1")
        tiny(tmp_path)

    rows = [
        ((wnids, ""), "is empty"),
        ((wnids, "n00001000\nn00001007\nn9\n"), "n9/images has 0 JPEGs, another class 2"),
        ((wnids, "n00001000\nn00001007\n\xff\n"), "/images has 0 JPEGs"),
        ((annotations, "".join(lines[:-1])), "lists 3 pictures, and images beside it has 4"),
        ((annotations, whole + lines[0]), "lists 5 pictures"),
        ((annotations, "\xff" + whole), "lists 4 pictures"),
        ((annotations, whole.replace("val_0", "val_9")), "lists 4 pictures"),
        ((annotations, whole + "val_0.JPEG\tn99\t0\t0\t1\t1\n"), "line 5: class 'n99'"),
    ]
    check_refused(load_with, rows, DamagedFile)
    for name in (annotations, wnids):
        (tmp_path / name).unlink()
        with pytest.raises(ConfigError, match=rf"{name} is not there; .*tiny-imagenet-200.zip"):
            tiny(tmp_path)


@pytest.mark.parametrize("where", ["train", "val"])
def test_pictures_of_tiny_imagenet_that_are_cut_or_absent_or_of_another_size_are_named(
    tmp_path: Path, where: str
):
    write_tiny_imagenet(tmp_path, each=3)
    path = next((tmp_path / where).rglob("*.JPEG"))
    whole = path.read_bytes()
    for damage, words in (
        (lambda: path.write_bytes(whole[:-200]), f"{path.name} is no whole picture"),
        (lambda: Image.fromarray(pictures(1, 32, 64, 3)[0]).save(path), r"shape \(3, 32, 64\)"),
        (path.unlink, "has 2 JPEGs, another class 3" if where == "train" else "beside it has 3"),
    ):
        damage()
        with pytest.raises(DamagedFile, match=words):
            tiny(tmp_path)


# Hugging Face.


class Table(list[dict[str, Any]]):
    """Rows by number and columns by name, as those of `datasets`."""

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def rows(x: np.ndarray, mode: str = "RGB") -> list[dict[str, Any]]:
    return [{"picture": Image.fromarray(v).convert(mode), "digit": i % 3} for i, v in enumerate(x)]


CONFIG = HuggingFaceConfig(path="some/set", image="picture", label="digit")


def shown(table: list[dict[str, Any]], config: HuggingFaceConfig = CONFIG) -> Images:
    images = stored_images(Table(table), config)
    return Images(images.pixels(), images.y)


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA", "CMYK"])
def test_colours_keep_their_values(mode: str):
    x = pictures(4, 6, 7, 3) // 64 * 85  # few colours, for the palette
    table = rows(x, "RGB" if mode == "P" else mode)
    if mode == "P":
        table = [row | {"picture": row["picture"].quantize(256)} for row in table]
    assert {row["picture"].mode for row in table} == {mode}
    images = shown(table)
    assert_shows(images.x, x)
    assert images.y.tolist() == [0, 1, 2, 0]


def test_grey_pictures_keep_one_channel_unless_others_have_colour():
    x = pictures(4, 6, 7)
    for mode in ("L", "LA"):
        table = [*rows(x, mode), {"picture": Image.fromarray(x[0] > 127), "digit": 1}]
        assert [row["picture"].mode for row in table] == [mode] * 4 + ["1"]
        images = shown(table)
        assert_shows(images.x, np.stack([*x, (x[0] > 127) * 255])[..., None])
    mixed = shown([*rows(x, "L"), *rows(pictures(1, 6, 7, 3))])
    assert mixed.x.shape == (5, 3, 6, 7)
    np.testing.assert_array_equal(mixed.x[:4, 2].numpy(), x)


def test_pictures_of_several_sizes_are_scaled_and_cut_to_one():
    wide = Image.new("RGB", (40, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (10, 0, 30, 20))  # the middle, which stays
    high = Image.new("P", (10, 30), 0)
    table = [{"image": wide, "label": 0}, {"image": high, "label": 1}]
    found = shown(table, HuggingFaceConfig(path="x", size=10))
    assert found.x.shape == (2, 3, 10, 10)
    assert found.x[0, :, 5, 5].tolist() == [0, 0, 255]


def test_rows_that_are_no_classification_set_are_refused():
    modes = ("I", "I;16", "F", "HSV", "LAB", "YCbCr")  # which would lose their values
    changes: list[tuple[dict[str, Any], str]] = [
        *(
            ({"picture": Image.new(m, (7, 6))}, f"'picture' has a picture of mode {m}")
            for m in modes
        ),
        ({"picture": None}, "column 'picture' has NoneType"),
        ({"picture": np.zeros((6, 7, 3), np.uint8)}, "column 'picture' has ndarray"),
        ({"picture": {"bytes": b"", "path": None}}, "column 'picture' has dict"),
        ({"digit": "cat"}, "label 'cat' in column 'digit'"),
        ({"digit": None}, "label None"),
        ({"picture": Image.new("RGB", (9, 9))}, "picture 1 has shape (3, 9, 9), picture 0 (3, 6"),
    ]
    one, two, three = rows(pictures(3, 6, 7, 3))
    check_refused(lambda own: shown([one, two | own, three]), changes)
    empty = [([], "at least one"), ([one | {"digit": -1}], "label -1")]
    check_refused(shown, empty, DamagedFile)
    with pytest.raises(ConfigError, match="no column 'image'; there are picture, digit"):
        shown([one], HuggingFaceConfig("p", label="digit"))


def test_both_splits_are_loaded(monkeypatch: pytest.MonkeyPatch):
    splits = {"train": rows(pictures(5, 6, 7, 3)), "validation": rows(pictures(2, 6, 7, 3))}
    splits["narrow"] = rows(pictures(3, 5, 7, 3))

    def load_dataset(path: str, *, split: str) -> Table:
        if split not in splits:
            raise ValueError(f'Unknown split "{split}".')
        return Table(splits[split])

    def load(test: str) -> Dataset:
        config = HuggingFaceConfig("p", "picture", "digit", test=test)
        return load_data(DataConfig(name="huggingface", huggingface=config), 0)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    data = load("validation")
    assert (len(data.train), len(data.test), data.num_classes) == (5, 2, 3)
    refused = [("test", "'p' cannot be loaded: Unknown split"), ("narrow", "pictures (3, 5, 7)")]
    check_refused(load, refused)
    monkeypatch.setitem(sys.modules, "datasets", None)
    check_refused(load, [("validation", 'pip install "rlplast[vision]"')])


@pytest.mark.parametrize("in_memory", [True, False])
def test_real_library_loads_a_local_folder(tmp_path: Path, in_memory: bool):
    pytest.importorskip("datasets")
    for split in ("train", "test"):
        for k, label in enumerate(("cat", "dog")):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            Image.fromarray(pictures(1, 6, 7, 3, seed=k)[0]).save(folder / "0.png")
    config = HuggingFaceConfig(path=str(tmp_path), in_memory=in_memory)
    data = load_data(DataConfig(name="huggingface", huggingface=config), 0)
    assert data.train.y.tolist() == [0, 1] and data.train.stored is not in_memory
    expected = np.stack([pictures(1, 6, 7, 3, seed=k)[0] for k in range(2)])
    assert_shows(data.train.pixels(), expected)
