"""Tiny-ImageNet and Hugging Face sets: values, labels, and what is refused."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.supervised.data import DataConfig, Dataset, HuggingFaceConfig, load_data
from rlplast.supervised.pictures import images_of_rows
from tests.supervised.published import pictures, write_tiny_imagenet


def tiny(folder: Path) -> Dataset:
    return load_data(DataConfig(name="tiny_imagenet", folder=str(folder)), 0)


@pytest.mark.parametrize("inner", ["", "tiny-imagenet-200"])
def test_tiny_imagenet_is_read_class_by_class_in_sorted_order(tmp_path: Path, inner: str):
    write_tiny_imagenet(tmp_path / inner, classes=3, each=2, val=5)
    data = tiny(tmp_path)
    train, at = tmp_path / inner / "train", 0
    for label, wnid in enumerate(sorted(os.listdir(train))):
        for name in sorted(os.listdir(train / wnid / "images")):
            picture = Image.open(train / wnid / "images" / name).convert("RGB")
            np.testing.assert_array_equal(
                data.train.x[at].permute(1, 2, 0).numpy(), np.asarray(picture)
            )
            assert data.train.y[at] == label
            at += 1
    assert len(data.train) == at == 6
    assert data.test.y.tolist() == [0, 1, 2, 0, 1]
    for i, x in enumerate(data.test.x):
        picture = Image.open(tmp_path / inner / "val" / "images" / f"val_{i}.JPEG")
        np.testing.assert_array_equal(x.permute(1, 2, 0).numpy(), np.asarray(picture))
    assert (data.num_classes, data.input_shape) == (3, (3, 64, 64))


@pytest.mark.parametrize("name", ["wnids.txt", "val/val_annotations.txt"])
def test_list_that_is_missing_or_no_text_is_refused(tmp_path: Path, name: str):
    write_tiny_imagenet(tmp_path)
    (tmp_path / name).write_bytes(b"n00001000\xff\n")
    with pytest.raises(DamagedFile, match=rf"{name} cannot be read, 11 bytes \('utf-8'"):
        tiny(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name} is not there; .*tiny-imagenet-200.zip"):
        tiny(tmp_path)


def test_classes_with_unequally_many_pictures_are_refused(tmp_path: Path):
    write_tiny_imagenet(tmp_path, each=3)
    next((tmp_path / "train").rglob("*.JPEG")).unlink()
    with pytest.raises(DamagedFile, match=r"has 2 JPEGs, another class 3"):
        tiny(tmp_path)


@pytest.mark.parametrize("where", ["train", "val"])
def test_picture_that_is_cut_is_refused(tmp_path: Path, where: str):
    write_tiny_imagenet(tmp_path)
    path = next((tmp_path / where).rglob("*.JPEG"))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamagedFile, match=f"{path.name} is no whole picture"):
        tiny(tmp_path)


def test_picture_of_another_size_is_refused(tmp_path: Path):
    write_tiny_imagenet(tmp_path)
    path = next((tmp_path / "train").rglob("*.JPEG"))
    Image.fromarray(pictures(1, 32, 64, 3)[0]).save(path)
    with pytest.raises(DamagedFile, match=r"shape \(3, 32, 64\); needed is \(3, 64, 64\)"):
        tiny(tmp_path)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("n00001000\nn00001007\nn00001000\n", "has 'n00001000'; .* each once"),
        ("n00001000\n../n00001007\n", r"has '\.\./n00001007'"),
        ("/\n", "has '/'"),
    ],
)
def test_list_of_classes_that_is_wrong_is_refused(tmp_path: Path, ids: str, message: str):
    write_tiny_imagenet(tmp_path)
    (tmp_path / "wnids.txt").write_text(ids)
    with pytest.raises(DamagedFile, match=f"wnids.txt {message}"):
        tiny(tmp_path)


def test_annotations_that_do_not_fit_the_pictures_are_refused(tmp_path: Path):
    write_tiny_imagenet(tmp_path, val=4)
    path = tmp_path / "val" / "val_annotations.txt"
    lines = path.read_text().splitlines(keepends=True)
    for kept, message in (
        (lines[:-1], r"val_3.JPEG is there and 0 times in val_annotations.txt"),
        ([*lines, lines[0]], r"val_0.JPEG is there and 2 times"),
        ([*lines, lines[0].replace("val_0", "val_9")], r"val_9.JPEG is not there and 1 times"),
        ([*lines, lines[0].replace("val_0", "../images/val_0")], r"not there and 1 times"),
        ([*lines, "val_0.JPEG\tn99\t0\t0\t1\t1\n"], "line 5: class 'n99'"),
    ):
        path.write_text("".join(kept))
        with pytest.raises(DamagedFile, match=message):
            tiny(tmp_path)


# Hugging Face.


def rows(x: np.ndarray, mode: str = "RGB") -> list[dict[str, Any]]:
    return [{"picture": Image.fromarray(v).convert(mode), "digit": i % 3} for i, v in enumerate(x)]


CONFIG = HuggingFaceConfig(path="some/set", image="picture", label="digit")


def test_rows_become_the_same_values():
    x = pictures(5, 6, 7, 3)
    images = images_of_rows(rows(x), CONFIG)
    np.testing.assert_array_equal(images.x.permute(0, 2, 3, 1).numpy(), x)
    assert images.y.tolist() == [0, 1, 2, 0, 1]


def test_grey_pictures_keep_one_channel_unless_others_have_colour():
    x = pictures(4, 6, 7)
    grey = images_of_rows(rows(x, "L"), CONFIG)
    np.testing.assert_array_equal(grey.x[:, 0].numpy(), x)
    mixed = images_of_rows([*rows(x, "L"), *rows(pictures(1, 6, 7, 3))], CONFIG)
    assert mixed.x.shape == (5, 3, 6, 7)
    np.testing.assert_array_equal(mixed.x[:4, 2].numpy(), x)


def test_black_and_white_and_transparent_grey_are_grey():
    x = pictures(4, 6, 7)
    table = [*rows(x, "LA"), {"picture": Image.fromarray(x[0] > 127), "digit": 1}]
    assert [row["picture"].mode for row in table] == ["LA"] * 4 + ["1"]
    images = images_of_rows(table, CONFIG)
    np.testing.assert_array_equal(images.x[:4, 0].numpy(), x)
    np.testing.assert_array_equal(images.x[4, 0].numpy(), (x[0] > 127) * 255)


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA", "CMYK"])
def test_colours_keep_their_values(mode: str):
    x = pictures(2, 6, 7, 3) // 64 * 85  # few colours, for the palette
    table = rows(x, "RGB" if mode == "P" else mode)
    if mode == "P":
        table = [row | {"picture": row["picture"].quantize(256)} for row in table]
    assert {row["picture"].mode for row in table} == {mode}
    images = images_of_rows(table, CONFIG)
    np.testing.assert_array_equal(images.x.permute(0, 2, 3, 1).numpy(), x)


@pytest.mark.parametrize("mode", ["I", "I;16", "F", "HSV", "LAB", "YCbCr"])
def test_pictures_that_would_lose_their_values_are_refused(mode: str):
    table = [*rows(pictures(1, 6, 7, 3)), {"picture": Image.new(mode, (7, 6)), "digit": 0}]
    with pytest.raises(
        ConfigError, match=rf"'picture' has a picture of mode {mode}; allowed are 1"
    ):
        images_of_rows(table, CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"picture": None}, "column 'picture' has NoneType; allowed are pictures"),
        ({"picture": np.zeros((6, 7, 3), np.uint8)}, "column 'picture' has ndarray"),
        ({"picture": {"bytes": b"", "path": None}}, "column 'picture' has dict"),
        ({"digit": "cat"}, "label 'cat' in column 'digit'"),
        ({"digit": None}, "label None"),
        ({"picture": Image.new("RGB", (9, 9))}, r"2 sizes, such as \(7, 6\) and \(9, 9\)"),
    ],
)
def test_rows_that_are_no_classification_set_are_refused(change: dict[str, Any], message: str):
    table = rows(pictures(3, 6, 7, 3))
    table[1] |= change
    with pytest.raises(ConfigError, match=f"some/set.*{message}"):
        images_of_rows(table, CONFIG)


def test_pictures_of_several_sizes_are_scaled_and_cut_to_one():
    wide = Image.new("RGB", (40, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (10, 0, 30, 20))  # the middle, which stays
    high = Image.new("P", (10, 30), 0)
    table = [{"image": wide, "label": 0}, {"image": high, "label": 1}]
    found = images_of_rows(table, HuggingFaceConfig(path="x", size=10))
    assert found.x.shape == (2, 3, 10, 10)
    assert found.x[0, :, 5, 5].tolist() == [0, 0, 255]


def test_missing_column_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match="no column 'image'; there are picture, digit"):
        images_of_rows(rows(pictures(1, 6, 7, 3)), HuggingFaceConfig("p", label="digit"))


@pytest.mark.parametrize(
    ("table", "message"),
    [([], "at least one image"), ([{"digit": -1}], "label -1; allowed is 0 and more$")],
)
def test_no_rows_and_negative_labels_are_refused(table: list[dict[str, Any]], message: str):
    table = [rows(pictures(1, 6, 7, 3))[0] | row for row in table]
    with pytest.raises(DamagedFile, match=message):
        images_of_rows(table, CONFIG)


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"datasets cannot .* pip install \"rlplast\[vision\]\""):
        load_data(DataConfig(name="huggingface", huggingface=CONFIG), 0)


def fake_library(monkeypatch: pytest.MonkeyPatch, splits: dict[str, list[dict[str, Any]]]) -> None:
    def load_dataset(path: str, *, split: str) -> list[dict[str, Any]]:
        if split not in splits:
            raise ValueError(f'Unknown split "{split}".')
        return splits[split]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_both_splits_are_loaded(monkeypatch: pytest.MonkeyPatch):
    train, test = rows(pictures(5, 6, 7, 3)), rows(pictures(2, 6, 7, 3))
    fake_library(monkeypatch, {"train": train, "validation": test})
    config = HuggingFaceConfig("p", "picture", "digit", test="validation")
    data = load_data(DataConfig(name="huggingface", huggingface=config), 0)
    assert (len(data.train), len(data.test), data.num_classes) == (5, 2, 3)
    with pytest.raises(ConfigError, match="'some/set' cannot be loaded: Unknown split"):
        load_data(DataConfig(name="huggingface", huggingface=CONFIG), 0)


def test_splits_of_several_sizes_are_refused(monkeypatch: pytest.MonkeyPatch):
    fake_library(
        monkeypatch, {"train": rows(pictures(3, 6, 7, 3)), "test": rows(pictures(3, 5, 7, 3))}
    )
    with pytest.raises(ConfigError, match=r"\(3, 6, 7\), test pictures \(3, 5, 7\)"):
        load_data(DataConfig(name="huggingface", huggingface=CONFIG), 0)


def test_real_library_loads_a_local_folder(tmp_path: Path):
    pytest.importorskip("datasets")
    for split in ("train", "test"):
        for k, label in enumerate(("cat", "dog")):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            Image.fromarray(pictures(1, 6, 7, 3, seed=k)[0]).save(folder / "0.png")
    config = HuggingFaceConfig(path=str(tmp_path))
    data = load_data(DataConfig(name="huggingface", huggingface=config), 0)
    assert data.train.y.tolist() == [0, 1]
    expected = np.stack([pictures(1, 6, 7, 3, seed=k)[0] for k in range(2)])
    np.testing.assert_array_equal(data.train.x.permute(0, 2, 3, 1).numpy(), expected)
