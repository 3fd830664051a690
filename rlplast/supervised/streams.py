"""Streams of data: which images come when.

| name | phase k of n trains on | source |
|---|---|---|
| single_task | everything, in one phase | |
| warm_start | a share of the images, then everything | Ash & Adams 2020; SWR §4.1; FIRE §4.1 |
| continual_full | the first k of n random chunks | SWR §4.2; FIRE §4.1 |
| continual_limited | the k-th random chunk alone | SWR §4.2 |
| class_incremental | the classes of the first k of n equal groups | FIRE §4.1 |
| repeated | everything, in each of n phases anew | persistent training (Min 2020) |
| random_labels | the same images, with labels drawn anew | Kumar et al. 2023 |
| permuted_pixels | the same images, their pixels in an order of its own | Kumar et al. 2023 |
| flipped_bits | examples of its own, of data that are generated | Dohare et al. 2024 |

`rlplast.supervised.tasks` makes the tasks of the last three.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from rlplast.core.validation import Section, check_section

__all__ = ["TASKS", "Phase", "StreamConfig", "phases"]

TASKS = ("random_labels", "permuted_pixels", "flipped_bits")  # a phase is a task of its own
Name = Literal[
    "single_task",
    "warm_start",
    "continual_full",
    "continual_limited",
    "class_incremental",
    "repeated",
    "random_labels",
    "permuted_pixels",
    "flipped_bits",
]
_READERS = {  # key → the streams that read it
    "fraction": ("warm_start",),
    "images": ("random_labels", "permuted_pixels"),
    "flip": ("flipped_bits",),
}
_FIXED = {"single_task": 1, "warm_start": 2}  # phases


Epochs = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass
class StreamConfig(Section):
    """Which images come when, and for how many epochs.

    Attributes:
        name: single_task, warm_start, continual_full, continual_limited, class_incremental,
            repeated, random_labels, permuted_pixels or flipped_bits.
        phases: number of phases, for all streams but the first two; null: 10. SWR has 10 chunks,
            FIRE 10 chunks or 20 groups of classes, Kumar et al. 50 tasks of random labels.
        fraction: for warm_start: share of the images in the first phase; null: 0.5 as in SWR. FIRE
            has 0.1.
        images: for random_labels and permuted_pixels: number of images that all tasks use, drawn
            from the run's seed; null: all.
        flip: for flipped_bits: what changes between tasks. all: the 15 slow bits are drawn anew.
            one: one of them is flipped. null: all.
        epochs: epochs of each phase. A list gives one number per phase, such as [1000, 100] for
            FIRE's warm start.
    """

    name: Name = "single_task"
    phases: Annotated[int, Field(ge=1, le=10_000)] | None = None
    fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    images: PositiveInt | None = None
    flip: Literal["all", "one"] | None = None
    epochs: Epochs | list[Epochs] = 100

    def num_phases(self) -> int:
        """Return how many phases there are; ConfigError for a bad value or a key not read."""
        check_section(self, "stream")
        for key, readers in _READERS.items():
            value = getattr(self, key)
            if value is not None and self.name not in readers:
                raise ConfigError(
                    f"stream.{key} = {value!r}: {self.name} does not read it, only "
                    f"{' and '.join(readers)}"
                )
        if self.phases is not None and self.name in _FIXED:
            raise ConfigError(
                f"stream.phases = {self.phases}: {self.name} does not read it, it has "
                f"{_FIXED[self.name]}"
            )
        return _FIXED.get(self.name, self.phases or 10)

    def epochs_of_phases(self) -> list[int]:
        """Return the epochs of each phase; ConfigError for a list of another length."""
        count, given = self.num_phases(), self.epochs
        epochs = given if isinstance(given, list) else [given] * count
        if len(epochs) != count:
            raise ConfigError(
                f"stream.epochs = {given!r} has {len(epochs)} entries; stream.name = {self.name!r} "
                f"has {count} phases: give one number for each, or one for all"
            )
        return epochs


@dataclass(frozen=True)
class Phase:
    """One phase of a stream: which images, by ascending indices, int64."""

    train: Tensor  # (n,)
    test: Tensor  # (m,)
    epochs: int  # passes over the training images


def phases(
    config: StreamConfig, train_labels: Tensor, test_labels: Tensor, num_classes: int, seed: int
) -> list[Phase]:
    """Return the phases of a run; images or classes are permuted once, by the run's seed.

    All phases are tested on all test images; those of class_incremental on the classes seen, and
    those of random_labels on the images that they train on. Labels are (n,), int64; targets (n,
    outputs) will do where no classes are asked for.

    Raises:
        ConfigError: for a bad config, classes that the phases do not divide, a phase without
            images, or more images asked for than there are.
    """
    epochs = config.epochs_of_phases()
    train_labels, test_labels = train_labels.cpu(), test_labels.cpu()
    stream = torch_stream(seed, "data", "stream")
    if config.name == "class_incremental":
        parts = _of_classes(config, train_labels, test_labels, num_classes, stream)
    else:
        order = torch.randperm(len(train_labels), generator=stream)
        test = torch.arange(len(test_labels))
        if config.name in TASKS:
            parts = [_of_tasks(config, order, test)] * len(epochs)
        else:
            parts = [(chosen.sort().values, test) for chosen in _of_images(config, order)]
    for number, (train, test) in enumerate(parts):
        if not len(train) or not len(test):
            raise ConfigError(
                f"stream.name = {config.name!r}: phase {number} of {len(parts)} has {len(train)} "
                f"training and {len(test)} test images of {len(train_labels)} and "
                f"{len(test_labels)}; allowed is at least 1: give fewer phases or a larger fraction"
            )
    return [Phase(train, test, e) for (train, test), e in zip(parts, epochs, strict=True)]


def _of_images(config: StreamConfig, order: Tensor) -> list[Tensor]:
    n, count = len(order), config.num_phases()
    if config.name == "warm_start":
        return [order[: round((config.fraction or 0.5) * n)], order]
    ends = [n * k // count for k in range(count + 1)]
    if config.name == "continual_limited":
        return [order[a:b] for a, b in pairwise(ends)]
    if config.name == "repeated":
        return [order] * count
    return [order[:end] for end in ends[1:]]


def _of_tasks(config: StreamConfig, order: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return the training and test images that all tasks share."""
    if (config.images or 0) > len(order):
        raise ConfigError(
            f"stream.images = {config.images}: allowed is at most the {len(order)} training images"
        )
    train = order[: config.images].sort().values
    # Under random labels no other image has one that could be learned.
    return train, train if config.name == "random_labels" else test


def _of_classes(
    config: StreamConfig,
    train_labels: Tensor,
    test_labels: Tensor,
    num_classes: int,
    stream: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    count = config.num_phases()
    if num_classes % count:
        raise ConfigError(
            f"stream.phases = {count} does not divide the {num_classes} classes of the data; "
            "allowed is a divisor, so that each phase brings equally many"
        )
    groups = torch.randperm(num_classes, generator=stream).view(count, -1)
    seen = [groups[: k + 1].flatten() for k in range(count)]
    return [(_members(train_labels, c), _members(test_labels, c)) for c in seen]


def _members(labels: Tensor, classes: Tensor) -> Tensor:
    return torch.isin(labels, classes).nonzero()[:, 0]
