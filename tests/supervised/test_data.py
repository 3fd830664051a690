"""Splits, normalisation, and what a data config is refused for."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from rlplast.supervised.data import (
    DataConfig,
    Dataset,
    HuggingFaceConfig,
    Images,
    hold_out,
    load_data,
    normaliser,
)
from rlplast.supervised.downloads import IMAGE_SETS
from tests.refused import check_refused


def rows(images: Images) -> Counter[tuple[int, ...]]:
    """Every image with its label, as something that can be counted."""
    return Counter((int(y), *x.flatten().tolist()) for x, y in zip(images.x, images.y, strict=True))


def test_digits_are_scikit_learns_each_in_one_split_which_is_that_of_all_seeds():
    data, other = load_data(DataConfig(), 0), load_data(DataConfig(), 2)
    digits = load_digits()
    whole = Counter(
        (int(y), *map(int, x.flatten())) for x, y in zip(digits.images, digits.target, strict=True)
    )
    assert rows(data.train) + rows(data.test) == whole
    assert (data.num_classes, data.input_shape) == (10, (1, 8, 8))
    assert int(data.train.x.max()) == 16
    assert data.test.x.equal(other.test.x) and data.train.x.equal(other.train.x)
    for share in (0.01, 0.25, 0.9):
        data = load_data(DataConfig(test=share), 0)
        test, train = data.test.y.bincount(minlength=10), data.train.y.bincount(minlength=10)
        assert ((test - share * (test + train)).abs() <= 0.5).all()


@pytest.mark.parametrize("like", ["mnist", "cifar100"])
def test_random_images_have_the_shape_of_a_published_set_and_can_be_told_apart(like: str):
    data = load_data(DataConfig(name="random", like=like), 1)
    published = IMAGE_SETS[like]
    assert (data.input_shape, data.num_classes) == (published.shape, published.classes)
    assert (len(data.train), len(data.test), data.train.x.dtype) == (1000, 200, torch.uint8)
    assert (data.train.y.bincount() >= 5).all() and len(data.train.y.unique()) == data.num_classes
    x, test = data.train.x.flatten(1).float(), data.test.x.flatten(1).float()
    means = torch.stack([x[data.train.y == label].mean(0) for label in range(data.num_classes)])
    assert torch.cdist(test, means).argmin(1).equal(data.test.y)
    again = load_data(DataConfig(name="random", like=like), 2)
    assert again.train.x.equal(data.train.x) and again.test.x.equal(data.test.x)
    assert not data.train.x[: len(data.test)].equal(data.test.x)


def test_few_random_images_are_of_few_classes_that_can_be_split():
    for examples in (1, 7, 200):
        config = DataConfig(name="random", like="cifar100", examples=examples)
        data = load_data(config, 1)
        assert len(data.train) == examples
        labels = data.train.y.unique()
        assert labels.equal(data.test.y.unique()) and len(labels) == len(data.test)
    held = load_data(replace(config, validation=0.1), 1)
    assert held.test.y.unique().equal(labels)


def test_validation_images_are_drawn_from_the_seed_and_replace_the_test_images():
    plain = load_data(DataConfig(), 1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    held, again, other = (load_data(DataConfig(validation=0.1), seed) for seed in (1, 1, 2))
    assert before[0].equal(torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert rows(held.train) + rows(held.test) == rows(plain.train)
    assert len(held.test) == pytest.approx(0.1 * len(plain.train), abs=5)
    assert held.unseen is not None and held.unseen.x.equal(plain.test.x)
    assert held.test.x.equal(again.test.x) and rows(held.test) != rows(other.test)
    split = load_data(DataConfig(validation=0.5, validation_of="test"), 1)
    assert split.train.x.equal(plain.train.x)
    assert split.unseen is not None and plain.unseen is None
    assert abs(len(split.test) - len(split.unseen)) <= 10  # a class may be odd
    assert rows(split.test) + rows(split.unseen) == rows(plain.test)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_hold_out_keeps_all_images_in_order(labels: list[int], share: float):
    images = Images(torch.arange(len(labels)), torch.tensor(labels))  # x tells which image
    counts = {label: int(share * n + 0.5) for label, n in Counter(labels).items()}
    if not any(counts.values()) or any(counts[c] == n for c, n in Counter(labels).items()):
        with pytest.raises(ConfigError, match="share = "):
            hold_out(images, share, torch_stream(0, "x"))
        return
    kept, held = hold_out(images, share, torch_stream(0, "x"))
    assert sorted(kept.x.tolist() + held.x.tolist()) == list(range(len(labels)))
    for part in (kept, held):
        assert part.x.tolist() == sorted(part.x.tolist())
        assert part.y.tolist() == [labels[i] for i in part.x]
    assert Counter(held.y.tolist()) == Counter({c: n for c, n in counts.items() if n})


@pytest.mark.parametrize("shape", [(1, 2, 1, 2), (7, 3, 5, 4), (50, 2, 8, 8)])
def test_normaliser_agrees_with_numpy_and_reads_training_images_only(shape: tuple[int, ...]):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch_stream(3, "x"))
    x[:, 0] //= 7
    x[:, 1] = 200  # becomes zero
    y = torch.zeros(len(x), dtype=torch.int64)
    factor, offset = normaliser(Dataset("made", Images(x, y), Images(x * 0, y), 1))
    assert factor.shape == offset.shape == (1, shape[1], 1, 1)
    assert factor.dtype == offset.dtype == torch.float32
    normal = (x.float() * factor + offset).double().numpy()
    assert (normal[:, 1] == 0).all()
    raw, own = x.numpy().astype(np.float64), [c for c in range(shape[1]) if c != 1]
    mean, std = (f(raw, (0, 2, 3))[own] for f in (np.mean, np.std))
    np.testing.assert_allclose(factor[0, own, 0, 0].numpy(), 1 / std, rtol=1e-6)
    np.testing.assert_allclose(offset[0, own, 0, 0].numpy(), -mean / std, rtol=1e-6)
    np.testing.assert_allclose(normal.mean((0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(normal.std((0, 2, 3))[own], 1, atol=1e-6)


@pytest.mark.gpu
def test_normaliser_is_the_same_on_every_device():
    data = load_data(DataConfig(), 0)
    there = data.to("cuda")
    assert there.train.x.is_cuda and there.test.y.is_cuda
    for a, b in zip(normaliser(data), normaliser(there), strict=True):
        assert b.is_cuda and a.equal(b.cpu())


# What the JSON Schema does not say; the rest: tests/run/test_schema_inputs.py.
REFUSED = [
    (DataConfig(name="mnist"), "data.folder is not set"),
    (DataConfig(name="mnist", folder="/no/such"), "data.folder = '/no/such': no such folder"),
    (DataConfig(name="mnist", folder=__file__), "no such folder"),
    (DataConfig(corrupted="/no/such"), "data.corrupted = '/no/such': no such folder"),
    (DataConfig(validation=1e-6), "data.validation = 1e-06 holds no image out"),
    (DataConfig(validation=0.999), "data.validation = 0.999: class 0 has 133 images and none"),
    (DataConfig(name="huggingface", huggingface=HuggingFaceConfig()), "path is not set"),
]


def test_bad_configs_are_refused():
    check_refused(lambda config: load_data(config, 0), REFUSED)
