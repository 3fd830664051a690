"""Augmentation of a batch against a slow twin that knows no draw."""

from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor

from rlplast.core.rng import torch_stream
from rlplast.run.config_file import read_config
from rlplast.supervised.augment import augment
from tests.refused import check_refused

BOTH = ("crop", "flip")


def images(batch: int, *shape: int) -> Tensor:
    stream = torch_stream(0, "images")
    return torch.randint(1, 256, (batch, *shape), generator=stream, dtype=torch.uint8)


def augmented(x: Tensor, *names: str, seed: int = 0) -> Tensor:
    return augment(x, names, torch_stream(seed, "a"))


def moved(x: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """One image, pixel by pixel: shifted, zeros coming in, then mirrored."""
    _, height, width = x.shape
    out = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            a, b = i - down, j - right
            if 0 <= a < height and 0 <= b < width:
                out[:, i, width - 1 - j if mirrored else j] = x[:, a, b]
    return out


@cache
def candidates(x: Tensor, names: tuple[str, ...]) -> dict[bytes, tuple[int, int, bool]]:
    shifts = range(-4, 5) if "crop" in names else [0]
    changes = [
        (a, b, f) for a in shifts for b in shifts for f in (False, True)[: 1 + ("flip" in names)]
    ]
    return {moved(x, *own).numpy().tobytes(): own for own in changes}


def changes(image: Tensor, out: Tensor, *names: str) -> list[tuple[int, int, bool]]:
    """Which change each of the images that were equal to one went through; exactly one fits."""
    known = candidates(image, names)
    return [known[o.numpy().tobytes()] for o in out]


@pytest.mark.parametrize("names", [["crop"], ["flip"], ["crop", "flip"]])
def test_every_image_is_one_of_the_allowed_changes(names: list[str]):
    shape = (3, 7, 10)
    for dtype in (torch.uint8, torch.float32):
        x = images(1, *shape).expand(40, *shape).to(dtype)
        out = augmented(x, *names)
        assert (out.dtype, out.shape) == (dtype, x.shape) and out.is_contiguous()
        changes(x[0], out, *names)


def test_changes_are_uniform_and_independent_and_switching_one_off_leaves_the_other():
    image = images(1, 1, 8, 8)[0]
    x = image.expand(8_100, 1, 8, 8)
    both = changes(image, augmented(x, *BOTH), *BOTH)
    counts = Counter(both)
    chi_squared = sum((n - 50) ** 2 / 50 for n in counts.values())
    assert len(counts) == 162
    assert chi_squared < 161 + 5 * (2 * 161) ** 0.5
    alone = [changes(image, augmented(x[:50], name), name) for name in BOTH]
    assert [(*a[:2], b[2]) for a, b in zip(*alone, strict=True)] == both[:50]
    assert augmented(x, "flip", "crop").equal(augmented(x, *BOTH))


def test_all_channels_of_an_image_move_together_and_images_stay_apart():
    x = images(3, 1, 7, 7).expand(3, 3, 7, 7)
    out = augmented(x, *BOTH)
    assert out[:, 0].equal(out[:, 1]) and out[:, 0].equal(out[:, 2])
    for i in range(3):  # no pixel of another image
        changes(x[i, :1], out[i : i + 1, :1], *BOTH)


def test_draws_come_from_the_generator_alone():
    x = images(20, 3, 8, 8)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    out = augmented(x, *BOTH)
    assert before.equal(torch.get_rng_state())
    torch.manual_seed(1)
    assert out.equal(augmented(x, *BOTH))
    assert not out.equal(augmented(x, *BOTH, seed=1))
    assert x.equal(images(20, 3, 8, 8))  # the batch itself is not changed


@pytest.mark.gpu
def test_draws_are_the_same_on_every_device():
    x = images(20, 3, 8, 8)
    here, there = (augmented(v, *BOTH) for v in (x, x.cuda()))
    assert there.is_cuda and here.equal(there.cpu())


def test_unknown_and_repeated_names_are_refused():
    rows = [
        (["crop", "flp"], "did you mean 'flip'?"),
        (["rotate"], "'rotate': allowed: crop, flip"),
        (["crop", "crop"], "allowed is each name once"),
    ]
    check_refused(lambda names: read_config({"kind": "supervised", "augment": names}), rows)
