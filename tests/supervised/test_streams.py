"""Streams: which images come when, as properties of sets."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.supervised.streams import TASKS, Phase, StreamConfig, phases
from tests.refused import check_refused

RANDOM = ["single_task", "warm_start", "continual_full", "continual_limited", "repeated"]
NAMES = [*RANDOM, "class_incremental"]


def some(name: str, count: int, **keys: Any) -> StreamConfig:
    """A stream of `count` phases, if it lets us choose."""
    own = {} if name in ("single_task", "warm_start") else {"phases": count}
    return StreamConfig(name, **own, **keys)


def labels(n: int, classes: int = 6) -> torch.Tensor:
    return torch.arange(n) % classes


def make(config: StreamConfig, n: int = 60, m: int = 24, seed: int = 1) -> list[Phase]:
    return phases(config, labels(n), labels(m), 6, seed)


def sets(stream: list[Phase]) -> list[set[int]]:
    return [set(phase.train.tolist()) for phase in stream]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(count=st.sampled_from([1, 2, 3, 6]), n=st.integers(12, 90), seed=st.integers(0, 5))
def test_phases_are_ascending_indices_of_existing_images(name: str, count: int, n: int, seed: int):
    stream = make(some(name, count), n, 24, seed)
    for phase in stream:
        for chosen, size in ((phase.train, n), (phase.test, 24)):
            assert chosen.dtype == torch.int64
            values = chosen.tolist()
            assert values == sorted(set(values)) and values[0] >= 0 and values[-1] < size
        assert name == "class_incremental" or phase.test.tolist() == list(range(24))
    found = sets(stream)
    assert set().union(*found) == set(range(n))
    if name != "continual_limited":  # all others are cumulative
        assert all(a <= b for a, b in pairwise(found))
        assert found[-1] == set(range(n))
    if name in ("single_task", "repeated"):
        assert found == [set(range(n))] * (1 if name == "single_task" else count)


@settings(max_examples=30)
@given(st.floats(0.05, 0.95), st.integers(20, 200))
def test_warm_start_begins_with_its_fraction(fraction: float, n: int):
    first, second = make(StreamConfig("warm_start", fraction=fraction), n)
    assert abs(len(first.train) - fraction * n) <= 0.5
    assert len(second.train) == n


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(12, 100))
def test_limited_chunks_are_disjoint_and_even_and_full_access_is_their_union(count: int, n: int):
    chunks = sets(make(StreamConfig("continual_limited", phases=count), n))
    sizes = [len(chunk) for chunk in chunks]
    assert len(sizes) == count and sum(sizes) == n and max(sizes) - min(sizes) <= 1
    full = sets(make(StreamConfig("continual_full", phases=count), n))
    assert full == [set().union(*chunks[: k + 1]) for k in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_class_incremental_adds_equally_many_whole_classes(count: int):
    train, test = labels(60), labels(24)
    seen: set[int] = set()
    for k, phase in enumerate(make(StreamConfig("class_incremental", phases=count))):
        classes = set(train[phase.train].tolist())
        assert len(classes) == (k + 1) * 6 // count and seen <= classes
        seen = classes
        assert phase.train.tolist() == [i for i in range(60) if int(train[i]) in classes]
        assert phase.test.tolist() == [i for i in range(24) if int(test[i]) in classes]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_all_images_in_common_or_the_same_few_of_the_seed(name: str):
    stream = make(StreamConfig(name, phases=5))
    assert [phase.train.tolist() for phase in stream] == [list(range(60))] * 5
    itself = name == "random_labels"  # is evaluated on what it learns
    assert [phase.test.tolist() for phase in stream] == [list(range(60 if itself else 24))] * 5
    if name == "flipped_bits":
        return
    first, *others = make(StreamConfig(name, phases=4, images=7))
    assert len(first.train) == 7 and first.train.equal(first.train.unique())
    for phase in (first, *others):
        assert phase.train.equal(first.train)
        assert phase.test.equal(first.train if itself else torch.arange(24))
    again = make(StreamConfig(name, phases=2, images=7))
    assert again[0].train.equal(first.train)
    drawn = [make(StreamConfig(name, images=7), seed=s)[0].train.tolist() for s in range(5)]
    assert len({tuple(own) for own in drawn}) > 1


@pytest.mark.parametrize("name", [*RANDOM[1:4], "class_incremental"])
def test_order_comes_from_the_seed_and_not_from_the_global_generator(name: str):
    before = torch.get_rng_state()
    first = [make(some(name, 3), seed=seed)[0].train.tolist() for seed in (0, 0, 1, 2, 3, 4)]
    assert before.equal(torch.get_rng_state())
    assert first[0] == first[1]
    assert len({tuple(own) for own in first}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_one_number_of_epochs_is_for_all_phases_and_a_list_for_each(name: str):
    config = some(name, 3, epochs=5)
    count = {"single_task": 1, "warm_start": 2}.get(name, 3)
    assert config.num_phases() == count
    assert config.epochs_of_phases() == [5] * count
    each = some(name, 3, epochs=list(range(1, count + 1)))
    assert [p.epochs for p in make(each)] == list(range(1, count + 1))


# What the JSON Schema does not say; the rest: tests/run/test_schema_inputs.py.
CONFIGS = [
    (StreamConfig("warm_start", epochs=[1, -2]), "stream.epochs = [1, -2]"),
    (StreamConfig("warm_start", epochs=[1, 2, 3]), "[1, 2, 3] has 3 entries"),
    (StreamConfig(epochs=[]), "has 0 entries"),
    (StreamConfig(fraction=0.3), "single_task does not read it, only warm_start"),
    (StreamConfig("warm_start", phases=3), "warm_start does not read it, it has 2"),
    (StreamConfig("warm_start", images=3), "stream.images = 3: warm_start does not read it"),
    (StreamConfig("random_labels", flip="one"), "random_labels does not read it, only flip"),
]
WITH_DATA = [
    ((StreamConfig("class_incremental", phases=4), 60), "phases = 4 does not divide the 6 class"),
    ((StreamConfig("continual_full", phases=10), 9), "phase 0 of 10 has 0 training"),
    ((StreamConfig("continual_limited", phases=10), 9), "phase 0 of 10 has 0 training"),
    ((StreamConfig("warm_start", fraction=0.01), 9), "phase 0 of 2 has 0 training"),
    ((StreamConfig("single_task"), 0), "phase 0 of 1 has 0 training"),
    ((StreamConfig("random_labels"), 0), "phase 0 of 10 has 0 training"),
    ((StreamConfig("random_labels", images=10), 9), "images = 10: allowed is at most the 9 trai"),
    ((StreamConfig("class_incremental", phases=2), 60, 0), "has 30 training and 0 test images"),
]


def test_bad_configs_and_streams_with_empty_phases_are_refused():
    check_refused(lambda config: config.epochs_of_phases(), CONFIGS)
    check_refused(lambda given: make(*given), WITH_DATA)
