"""Pictures decoded by batch: the numbers of those in memory, for the memory of a batch."""

import shutil
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.supervised.data import HuggingFaceConfig
from rlplast.supervised.pictures import stored_images
from tests.runs import Killed, at_step, final, kill
from tests.supervised.published import pictures
from tests.supervised_runs import small_supervised

SIDE, CLASSES = 12, 3
HOOKS = [
    {"method": "redo", "at": "11 updates"},  # reads activations of a probe
    {"method": "shrink_perturb", "at": ["3 updates", "7 updates"]},
]


class Table:
    """Rows of `datasets`, whose pictures are opened when a row is asked for."""

    def __init__(self, pictures: Sequence[Path | Image.Image]) -> None:
        self.pictures, self.opened = pictures, 0
        self.labels = [int(p.parent.name) if isinstance(p, Path) else 0 for p in pictures]

    def __len__(self) -> int:
        return len(self.pictures)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.labels
        self.opened += 1
        own = self.pictures[key]
        picture = Image.open(own) if isinstance(own, Path) else own.copy()
        picture.load()
        return {"image": picture, "label": self.labels[key]}


def write(folder: Path, train: int, test: int) -> None:
    """Write JPEGs and PNGs of several sizes, some of them grey, as folders of classes."""
    for part, count in (("train", train), ("test", test)):
        for i in range(count):
            label, grey = i % CLASSES, i % 5 == 0
            side = SIDE + i % 4
            path = folder / part / str(label) / f"{i:03}.{('png', 'jpg')[i % 2]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pictures(1, side, SIDE + 2, 3, seed=i)[0])
            (picture.convert("L") if grey else picture).save(path)


def table(folder: Path, part: str) -> Table:
    return Table(sorted((folder / part).rglob("*.*")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 60 training and 9 test pictures, and a library that loads it."""
    write(tmp_path / "pictures", 60, 9)

    def load_dataset(path: str, *, split: str) -> Table:
        return table(Path(path), split)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return tmp_path / "pictures"


def config(folder: Path, in_memory: bool, **changes: Any) -> dict[str, Any]:
    huggingface = {"path": str(folder), "size": SIDE, "in_memory": in_memory}
    return small_supervised(
        data={"name": "huggingface", "huggingface": huggingface, "validation": 0.2},
        batch_size=10,
        micro_batch=4,
        augment=["crop", "flip"],
        **{"hooks": HOOKS} | changes,
    )


def both(folder: Path) -> list[Any]:
    return [build(api.read_config(config(folder, memory)))[0] for memory in (True, False)]


def test_batches_are_those_of_the_reader_in_memory(folder: Path):
    whole, stored = both(folder)
    assert not whole.data.train.stored and stored.data.train.stored
    for _ in range(12):
        chosen = whole._chosen(whole.here())
        assert torch.equal(stored._chosen(stored.here()), chosen)
        parts = [list(t._parts(chosen, -(-len(chosen) // 4))) for t in (whole, stored)]
        for (x, y), (other_x, other_y) in zip(*parts, strict=True):
            assert torch.equal(x, other_x) and torch.equal(y, other_y)
        whole.step()
        stored.step()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(stored.model.state_dict()[name], value), name
    assert whole.evaluate(0, 1) == stored.evaluate(0, 1)
    assert torch.equal(whole.sample(7, 3).x, stored.sample(7, 3).x)
    for one, other in zip(whole.batches(9, 8, 1), stored.batches(9, 8, 1), strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def test_parts_of_a_batch_are_augmented_as_the_whole_batch(folder: Path):
    trainer = both(folder)[1]
    chosen = trainer._chosen(trainer.here())
    whole = next(trainer._parts(chosen, 1))[0]
    assert torch.equal(torch.cat([x for x, _ in trainer._parts(chosen, 4)]), whole)


def test_killed_and_resumed_equals_without_another_pass_for_the_normaliser_unless_data_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    api.train(config(folder, False), tmp_path / "through")
    run = tmp_path / "run"
    with pytest.raises(Killed):
        api.train(config(folder, False), run, observer=at_step(9, kill))
    shutil.copytree(run, tmp_path / "again")
    passes: list[object] = []
    monkeypatch.setattr("rlplast.supervised.trainer.normaliser", passes.append)
    api.resume(run)
    assert final(run) == final(tmp_path / "through")
    assert not passes
    for path in sorted((folder / "train").rglob("*.*"))[:40]:  # some are held out for validation
        Image.fromarray(pictures(1, SIDE, SIDE, 3, seed=99)[0]).save(path)
    with pytest.raises(ConfigError, match=r"data\.train"):
        api.resume(tmp_path / "again")


def test_memory_grows_by_batches_and_not_by_pictures():
    shape, batch = (3, 64, 64), 16

    def peak(count: int) -> int:
        rows: Any = Table([Image.new("RGB", shape[1:])] * count)
        tracemalloc.start()
        images = stored_images(rows, HuggingFaceConfig("made"))
        for start in range(0, count, batch):
            images.batch(torch.arange(start, start + batch))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    own = int(np.prod(shape))
    for count in (64, 256):
        assert batch * own < peak(count) < 2 * batch * own + 200_000


def test_pictures_in_colour_are_not_all_opened(folder: Path):
    rows = table(folder, "train")
    images = stored_images(rows, HuggingFaceConfig("made", size=SIDE))
    assert rows.opened < 5  # the first is grey, the next is not
    assert images.x.shape == (60, 3, SIDE, SIDE)


def test_pictures_that_all_change_at_once_have_to_be_in_memory(folder: Path):
    stream = {"name": "permuted_pixels", "phases": 2, "epochs": 1}
    with pytest.raises(ConfigError, match=r"permuted_pixels' with .*in_memory = False"):
        api.read_config(config(folder, False, stream=stream))
