"""Streams: which images come when, as properties of sets."""

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplast.core.errors import ConfigError
from rlplast.supervised.streams import TASKS, Phase, StreamConfig, phases

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
@given(count=st.sampled_from([1, 2, 3, 6]), n=st.integers(12, 90), seed=st.integers(0, 5))
def test_phases_are_ascending_indices_of_existing_images(name: str, count: int, n: int, seed: int):
    stream = make(some(name, count), n, 24, seed)
    for phase in stream:
        for chosen, size in ((phase.train, n), (phase.test, 24)):
            assert chosen.dtype == torch.int64
            values = chosen.tolist()
            assert values == sorted(set(values)) and values[0] >= 0 and values[-1] < size
    everything = set().union(*sets(stream))
    assert everything == set(range(n))
    if name != "continual_limited":  # all others are cumulative
        found = sets(stream)
        assert all(a <= b for a, b in pairwise(found))
        assert found[-1] == everything


@pytest.mark.parametrize("name", RANDOM)
def test_random_streams_are_tested_on_all_test_images(name: str):
    for phase in make(some(name, 5)):
        assert phase.test.tolist() == list(range(24))


def test_single_task_is_one_phase_of_everything():
    (phase,) = make(StreamConfig("single_task", epochs=7))
    assert phase.train.tolist() == list(range(60)) and phase.epochs == 7


def test_repeated_is_everything_in_every_phase():
    stream = make(StreamConfig("repeated", phases=4, epochs=7))
    assert [(p.train.tolist(), p.epochs) for p in stream] == [(list(range(60)), 7)] * 4


@given(st.floats(0.05, 0.95), st.integers(20, 200))
def test_warm_start_begins_with_its_fraction(fraction: float, n: int):
    first, second = make(StreamConfig("warm_start", fraction=fraction), n)
    assert abs(len(first.train) - fraction * n) <= 0.5
    assert len(second.train) == n


@given(st.integers(1, 12), st.integers(12, 100))
def test_limited_chunks_are_disjoint_and_even(count: int, n: int):
    found = sets(make(StreamConfig("continual_limited", phases=count), n))
    sizes = [len(chunk) for chunk in found]
    assert len(sizes) == count and sum(sizes) == n and max(sizes) - min(sizes) <= 1


@given(st.integers(1, 12), st.integers(12, 100))
def test_full_access_is_the_union_of_the_limited_chunks(count: int, n: int):
    chunks = sets(make(StreamConfig("continual_limited", phases=count), n))
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
def test_tasks_have_all_images_in_common(name: str):
    stream = make(StreamConfig(name, phases=5))
    assert [phase.train.tolist() for phase in stream] == [list(range(60))] * 5
    test = list(range(60 if name == "random_labels" else 24))
    assert [phase.test.tolist() for phase in stream] == [test] * 5


def test_random_labels_are_learned_and_evaluated_on_the_same_images_of_the_seed():
    first, *others = make(StreamConfig("random_labels", phases=4, images=7))
    assert len(first.train) == 7 and first.train.equal(first.train.unique())
    for phase in (first, *others):
        assert phase.train.equal(first.train) and phase.test.equal(first.train)
    again = make(StreamConfig("random_labels", phases=2, images=7))
    assert again[0].train.equal(first.train)
    drawn = {
        tuple(make(StreamConfig("random_labels", images=7), seed=s)[0].train.tolist())
        for s in range(5)
    }
    assert len(drawn) > 1


def test_permuted_pixels_of_few_images_are_tested_on_all_test_images():
    phase = make(StreamConfig("permuted_pixels", phases=4, images=7))[-1]
    assert len(phase.train) == 7 and phase.test.tolist() == list(range(24))


@pytest.mark.parametrize("name", [*RANDOM[1:4], "class_incremental"])
def test_order_comes_from_the_seed(name: str):
    def first(seed: int) -> list[int]:
        return make(some(name, 3), seed=seed)[0].train.tolist()

    assert first(1) == first(1)
    assert len({tuple(first(seed)) for seed in range(6)}) > 1


def test_every_image_is_as_likely_in_the_first_chunk():
    config = StreamConfig("continual_limited", phases=4)
    counts = Counter(i for s in range(400) for i in make(config, 12, seed=s)[0].train.tolist())
    assert all(60 < counts[i] < 140 for i in range(12))  # 100 expected, 8.7 standard deviation


@pytest.mark.parametrize("name", NAMES)
def test_labels_and_global_generator_stay_as_they_are(name: str):
    train, test = labels(60), labels(24)
    before = torch.get_rng_state()
    phases(some(name, 3), train, test, 6, 1)
    assert train.equal(labels(60)) and test.equal(labels(24))
    assert before.equal(torch.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
def test_one_number_of_epochs_is_for_all_phases_and_a_list_for_each(name: str):
    config = some(name, 3, epochs=5)
    count = {"single_task": 1, "warm_start": 2}.get(name, 3)
    assert config.num_phases() == count
    assert config.epochs_of_phases() == [5] * count
    each = some(name, 3, epochs=list(range(1, count + 1)))
    assert [p.epochs for p in make(each)] == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (StreamConfig("warmstart"), r"stream.name = 'warmstart': did you mean 'warm_start'\?"),
        (StreamConfig("continual_full", phases=0), r"stream.phases = 0: allowed is \[1, 10000\]"),
        (StreamConfig("warm_start", fraction=1.0), r"stream.fraction = 1.0: allowed is \(0, 1\)"),
        (StreamConfig("warm_start", fraction=float("nan")), "stream.fraction = nan"),
        (StreamConfig(epochs=0), r"stream.epochs = 0: allowed is \[1, 1000000\]"),
        (StreamConfig("warm_start", epochs=[1, -2]), re.escape("stream.epochs = [1, -2]")),
        (
            StreamConfig("warm_start", epochs=[1, 2, 3]),
            r"\[1, 2, 3\] has 3 entries; stream.name = 'warm_start' has 2 phases",
        ),
        (StreamConfig(epochs=[]), "has 0 entries"),
        (StreamConfig(fraction=0.3), "single_task does not read it, only warm_start"),
        (StreamConfig("warm_start", phases=3), "warm_start does not read it, it has 2"),
        (
            StreamConfig("warm_start", images=3),
            "stream.images = 3: warm_start does not read it, only random_labels and permuted_pix",
        ),
        (StreamConfig("random_labels", images=0), r"stream.images = 0: allowed is \[1, inf\)"),
        (StreamConfig("random_labels", flip="one"), "random_labels does not read it, only flip"),
        (StreamConfig("flipped_bits", flip="two"), "stream.flip = 'two': allowed is all | one"),
    ],
)
def test_bad_configs_are_refused_without_data(config: StreamConfig, message: str):
    with pytest.raises(ConfigError, match=message):
        config.epochs_of_phases()


@pytest.mark.parametrize(
    ("config", "n", "message"),
    [
        (StreamConfig("class_incremental", phases=4), 60, "phases = 4 does not divide the 6 class"),
        (StreamConfig("continual_full", phases=10), 9, "phase 0 of 10 has 0 training"),
        (StreamConfig("continual_limited", phases=10), 9, "phase 0 of 10 has 0 training"),
        (StreamConfig("warm_start", fraction=0.01), 9, "phase 0 of 2 has 0 training"),
        (StreamConfig("single_task"), 0, "phase 0 of 1 has 0 training"),
        (StreamConfig("random_labels"), 0, "phase 0 of 10 has 0 training"),
        (StreamConfig("random_labels", images=10), 9, "images = 10: allowed is at most the 9 trai"),
    ],
)
def test_streams_with_empty_phases_are_refused(config: StreamConfig, n: int, message: str):
    with pytest.raises(ConfigError, match=message):
        make(config, n)


def test_classes_without_test_images_are_refused():
    with pytest.raises(ConfigError, match="phase 0 of 2 has 30 training and 0 test images"):
        make(StreamConfig("class_incremental", phases=2), 60, 0)
