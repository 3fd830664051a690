"""Data of no meaning in the formats that runs read, for trying out runs without their data.

- `make_data`: whatever a config that `rlplast.run.shrink` made small reads from the disk.

Images are noise around a pattern of their class, so that there is something to learn. They are
written as the published files are, and read by the readers of the real ones. Corpora are random
tokens. A run to start from is a run of a few updates.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.rng import numpy_stream
from rlplast.gpt.corpus import FORMAT, PREFIX
from rlplast.run import api
from rlplast.supervised.corrupted import CORRUPTIONS, SEVERITIES
from rlplast.supervised.formats import CIFAR10, CIFAR100, CifarLayout
from rlplast.supervised.sizes import KNOWN
from rlplast.training.config import RunConfig

__all__ = ["make_data"]

TRAIN, TEST = 200, 40  # images
CLASSES = 40  # the most that have images: so each has 5 to learn from, which can be split again
TOKENS = 20_000
IDS = {"bytes": 256, "gpt2": 50257}


def make_data(config: RunConfig) -> None:
    """Make what a config reads from the disk and is not there yet.

    Raises:
        ConfigError: if a run to start from cannot be made.
        OSError: if a folder cannot be written.
    """
    known: Any = config
    if config.kind == "supervised":
        data = known.data
        if data.name in _WRITERS:
            _once(data.folder, _WRITERS[data.name])
        elif data.name == "huggingface":
            _once(data.huggingface.path, _write_pictures)
        if data.corrupted is not None:
            _once(data.corrupted, lambda folder: _write_corrupted(folder, data.name))
    elif config.kind == "gpt":
        for source in known.corpora.values():
            if not source.startswith(PREFIX):
                _once(source, _write_corpus)
        if known.start.run is not None:
            _once(known.start.run, lambda folder: _start(known, folder))


def _once(folder: str, write: Callable[[Path], object]) -> None:
    """Call `write` with a folder that is new."""
    path = Path(folder)
    if not path.exists():
        path.mkdir(parents=True)
        write(path)


def _images(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images (n, channels, height, width), uint8, and labels (n,) of both parts of a set."""
    sizes = KNOWN[name]
    rng = numpy_stream(0, "made", name)
    labels = np.linspace(0, sizes.classes, min(sizes.classes, CLASSES), endpoint=False).astype(int)
    patterns = rng.integers(0, 192, (sizes.classes, *sizes.shape))
    parts = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        y = labels[np.arange(count) % len(labels)]
        x = patterns[y] + rng.integers(0, 64, (count, *sizes.shape))
        parts[part] = x.astype(np.uint8), y
    return parts


def _write_mnist(folder: Path) -> None:
    for part, (x, y) in _images("mnist").items():
        prefix = {"train": "train", "test": "t10k"}[part]
        for name, array in ((f"{prefix}-images-idx3", x[:, 0]), (f"{prefix}-labels-idx1", y)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (folder / f"{name}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())


def _write_cifar(folder: Path, name: str, layout: CifarLayout) -> None:
    parts = _images(name)
    for part, files in (("train", layout.train), ("test", (layout.test,))):
        x, y = parts[part]
        labels = np.repeat(y[:, None], layout.label_bytes, axis=1)
        records = np.concatenate([labels, x.reshape(len(x), -1)], axis=1).astype(np.uint8)
        for file, own in zip(files, np.array_split(records, len(files)), strict=True):
            (folder / file).write_bytes(own.tobytes())


def _write_tiny_imagenet(folder: Path) -> None:
    parts, lines = _images("tiny_imagenet"), []
    wnids = [f"n{label:08d}" for label in np.unique(parts["train"][1])]
    names = dict(zip(np.unique(parts["train"][1]), wnids, strict=True))
    for number, (picture, label) in enumerate(zip(*parts["train"], strict=True)):
        _save(folder / "train" / names[label] / "images" / f"{number}.JPEG", picture)
    for number, (picture, label) in enumerate(zip(*parts["test"], strict=True)):
        _save(folder / "val" / "images" / f"val_{number}.JPEG", picture)
        lines.append(f"val_{number}.JPEG\t{names[label]}\t0\t0\t63\t63\n")
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def _write_pictures(folder: Path) -> None:
    """Write a folder of classes for each part, which `datasets` loads with its own columns."""
    for part, (x, y) in _images("cifar10").items():
        for number, (picture, label) in enumerate(zip(x, y, strict=True)):
            _save(folder / part / str(label) / f"{number}.png", picture)


def _save(path: Path, picture: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.transpose(1, 2, 0)).save(path)


def _write_corrupted(folder: Path, name: str) -> None:
    x, y = _images(name)["test"]
    np.save(folder / "labels.npy", np.tile(y, SEVERITIES))
    pictures = np.tile(x.transpose(0, 2, 3, 1), (SEVERITIES, 1, 1, 1))
    for corruption in CORRUPTIONS:
        np.save(folder / f"{corruption}.npy", pictures)


_WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist": _write_mnist,
    "cifar10": partial(_write_cifar, name="cifar10", layout=CIFAR10),
    "cifar100": partial(_write_cifar, name="cifar100", layout=CIFAR100),
    "tiny_imagenet": _write_tiny_imagenet,
}


def _write_corpus(folder: Path) -> None:
    """Write what `rlplast tokens` does; the tokenizer is the first word of the folder's name."""
    tokenizer = folder.name.partition("-")[0]
    rng = numpy_stream(0, "made", folder.name)
    counts = {"train": TOKENS, "validation": TOKENS // 10}
    ids = {part: rng.integers(0, IDS[tokenizer], n).astype("<u2") for part, n in counts.items()}
    for part, tokens in ids.items():
        (folder / f"{part}.bin").write_bytes(tokens.tobytes())
    about = {
        "format": FORMAT,
        "tokenizer": tokenizer,
        "vocab_size": IDS[tokenizer],
        "dtype": "uint16",
        "sha256": hashlib.sha256(b"".join(t.tobytes() for t in ids.values())).hexdigest(),
    }
    for part, count in counts.items():
        about |= {f"{part}_tokens": count, f"{part}_bytes": count}
    (folder / "corpus.json").write_text(json.dumps(about))


def _start(config: Any, folder: Path) -> None:
    """Train a model of these sizes for a moment, with a best checkpoint and a newest one."""
    phase = {**config.phases[0], "updates": 2}
    checkpoint = dataclasses.replace(config.checkpoint, best="loss")
    before = dataclasses.replace(
        config,
        start=type(config.start)(),
        hooks=[],
        penalties=[],
        phases=[phase],
        total="auto",
        checkpoint=checkpoint,
    )
    api.train(before, folder)
