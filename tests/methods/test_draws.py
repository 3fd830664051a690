"""Draws from a hash, against the same in unsigned arithmetic and against their laws."""

import pytest
import torch
from torch import Tensor

from rlplast.methods.draws import hashed, normal, symmetric, uniform, whole_numbers
from tests.naive.lifecycle import splitmix64

SEEDS = (0, 1234567, 2**62 + 3)
MANY = torch.arange(200_000)


def test_words_are_those_of_a_hash_written_in_unsigned_arithmetic() -> None:
    for seed in SEEDS:
        words = hashed(torch.tensor(seed), torch.arange(5))
        assert [int(w) % 2**64 for w in words] == [splitmix64(seed, n) for n in range(5)]
        again = hashed(torch.tensor(seed), torch.arange(3).unsqueeze(1), torch.arange(4))
        expected = [[splitmix64(splitmix64(seed, n), m) for m in range(4)] for n in range(3)]
        assert [[int(w) % 2**64 for w in row] for row in again] == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_draws_have_the_moments_of_their_law(seed: int) -> None:
    laws: list[tuple[Tensor, float, float, float]] = [
        (uniform(torch.tensor(seed), MANY), 0.0, 1.0, 2.0**-53),
        (symmetric(torch.float32, torch.tensor(seed), MANY), -1.0, 1.0, 2.0**-23),
        (symmetric(torch.float64, torch.tensor(seed), MANY), -1.0, 1.0, 2.0**-23),
    ]
    for drawn, low, high, step in laws:
        wide = drawn.double()
        assert low <= float(wide.min()) and float(wide.max()) < high
        assert torch.equal((wide / step).round() * step, wide)  # exact in its type
        spread = (high - low) / 12**0.5
        assert float(wide.mean()) == pytest.approx((low + high) / 2, abs=5 * spread / 447)
        assert float(wide.std()) == pytest.approx(spread, rel=0.01)
        assert abs(float(torch.corrcoef(torch.stack([wide[1:], wide[:-1]]))[0, 1])) < 0.01
    assert laws[0][0].dtype == torch.float64


def test_whole_numbers_include_both_ends_and_are_equally_likely() -> None:
    drawn = whole_numbers(3, 9, torch.tensor(5), MANY)
    counts = drawn.bincount(minlength=10)
    assert counts[:3].tolist() == [0, 0, 0] and len(counts) == 10
    expected = len(MANY) / 7
    assert (counts[3:] - expected).abs().max() < 5 * expected**0.5
    assert (whole_numbers(4, 4, torch.tensor(5), MANY) == 4).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_normal_draws_have_their_law(seed: int) -> None:
    drawn = normal(torch.tensor(seed), MANY)
    assert drawn.dtype == torch.float64 and bool(drawn.isfinite().all())
    points = torch.linspace(-3, 3, 25, dtype=torch.float64)
    below = torch.tensor([float((drawn < p).double().mean()) for p in points])
    torch.testing.assert_close(below.double(), torch.special.ndtr(points), rtol=0, atol=5e-3)
    assert abs(float(torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1])) < 0.01
