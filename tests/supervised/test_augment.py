"""Augmentation of a batch against a slow twin that knows no draw."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from rlplast.run.config_file import read_config
from rlplast.supervised.augment import augment


def images(batch: int, *shape: int, seed: int = 0) -> Tensor:
    stream = torch_stream(seed, "images")
    return torch.randint(1, 256, (batch, *shape), generator=stream, dtype=torch.uint8)


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


def candidates(x: Tensor, names: list[str]) -> dict[tuple[int, int, bool], Tensor]:
    shifts = range(-4, 5) if "crop" in names else [0]
    flips = [False, True] if "flip" in names else [False]
    return {(a, b, f): moved(x, a, b, f) for a in shifts for b in shifts for f in flips}


def changes(x: Tensor, out: Tensor, names: list[str]) -> list[tuple[int, int, bool]]:
    """Which change each image of a batch of equal images went through; exactly one fits."""
    known = {tuple(v.flatten().tolist()): k for k, v in candidates(x[0], names).items()}
    return [known[tuple(o.flatten().tolist())] for o in out]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("names", [["crop"], ["flip"], ["crop", "flip"], []])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 10)])
def test_every_image_is_one_of_the_allowed_changes(
    shape: tuple[int, ...], names: list[str], dtype: torch.dtype
):
    x = images(1, *shape).expand(40, *shape).to(dtype)
    out = augment(x, names, torch_stream(0, "a"))
    assert (out.dtype, out.shape) == (dtype, x.shape) and out.is_contiguous()
    changes(x, out, names)


def test_changes_are_uniform_and_independent_between_images():
    x = images(1, 1, 8, 8).expand(16_200, 1, 8, 8)
    found = changes(x, augment(x, ["crop", "flip"], torch_stream(0, "a")), ["crop", "flip"])
    counts = Counter(found)
    chi_squared = sum((n - 100) ** 2 / 100 for n in counts.values())
    assert len(counts) == 162
    assert chi_squared < 161 + 5 * (2 * 161) ** 0.5


def test_all_channels_of_an_image_move_together_and_images_stay_apart():
    x = images(6, 1, 9, 9).expand(6, 3, 9, 9)
    out = augment(x, ["crop", "flip"], torch_stream(0, "a"))
    assert out[:, 0].equal(out[:, 1]) and out[:, 0].equal(out[:, 2])
    for i in range(6):  # no pixel of another image
        changes(x[i : i + 1], out[i : i + 1], ["crop", "flip"])


def test_switching_one_off_leaves_the_other_as_it_was():
    x = images(1, 1, 8, 8).expand(50, 1, 8, 8)

    def found(*names: str) -> list[tuple[int, int, bool]]:
        return changes(x, augment(x, names, torch_stream(0, "a")), list(names))

    both = found("crop", "flip")
    assert [c[:2] for c in found("crop")] == [c[:2] for c in both]
    assert [c[2] for c in found("flip")] == [c[2] for c in both]
    assert found("flip", "crop") == both


def test_draws_come_from_the_generator_alone():
    x = images(20, 3, 8, 8)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    out = augment(x, ["crop", "flip"], torch_stream(0, "a"))
    assert before.equal(torch.get_rng_state())
    torch.manual_seed(1)
    assert out.equal(augment(x, ["crop", "flip"], torch_stream(0, "a")))
    assert not out.equal(augment(x, ["crop", "flip"], torch_stream(1, "a")))
    assert x.equal(images(20, 3, 8, 8))  # the batch itself is not changed


@pytest.mark.gpu
def test_draws_are_the_same_on_every_device():
    x = images(20, 3, 8, 8)
    here, there = (augment(v, ["crop", "flip"], torch_stream(0, "a")) for v in (x, x.cuda()))
    assert there.is_cuda and here.equal(there.cpu())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["crop", "flp"], r"'flp': did you mean 'flip'\?"),
        (["rotate"], "'rotate': allowed: crop, flip"),
        (["crop", "crop"], "allowed is each name once"),
    ],
)
def test_unknown_and_repeated_names_are_refused(names: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        read_config({"kind": "supervised", "augment": names})
