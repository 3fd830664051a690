"""Draws without a generator: splitmix64 of a seed and of integer keys that say what is drawn.

There is no state to save, and nothing waits for the host. Steele, Lea & Flood 2014; Vigna.
"""

import math

import torch
from torch import Tensor

__all__ = ["hashed", "normal", "symmetric", "uniform", "whole_numbers"]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """Shift right without the sign: torch has no unsigned 64-bit arithmetic."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(word: Tensor) -> Tensor:
    word = (word ^ _shifted(word, 30)) * _FIRST
    word = (word ^ _shifted(word, 27)) * _SECOND
    return word ^ _shifted(word, 31)


def hashed(seed: Tensor, *keys: Tensor | int) -> Tensor:
    """Return 64 pseudo-random bits per combination of keys, as int64.

    Key n after key n is number n of the splitmix64 sequence that the keys before seed.

    Args:
        seed: int64 tensor.
        *keys: non-negative integers; tensors broadcast with each other and with `seed`.

    Examples:
        >>> seed = torch.tensor(1234567)
        >>> [int(hashed(seed, n)) for n in range(2)]  # the sequence's first two words
        [6457827717110365317, 3203168211198807973]
    """
    word = seed
    for key in keys:
        step = (key + 1) * _STEP
        word = _mixed(word + (_signed(step % (1 << 64)) if isinstance(step, int) else step))
    return word


def whole_numbers(low: int, high: int, seed: Tensor, *keys: Tensor | int) -> Tensor:
    """Return U{low..high}, both ends included, as int64; see `hashed` for the rest."""
    return low + _shifted(hashed(seed, *keys), 1) % (high - low + 1)


def symmetric(dtype: torch.dtype, seed: Tensor, *keys: Tensor | int) -> Tensor:
    """Return U[−1, 1) in steps of 2⁻²³, exact in float32; see `hashed` for the rest."""
    return _shifted(hashed(seed, *keys), 40).to(dtype) * 2.0**-23 - 1


def uniform(seed: Tensor, *keys: Tensor | int) -> Tensor:
    """Return U[0, 1) in steps of 2⁻⁵³, as float64; see `hashed` for the rest."""
    return _shifted(hashed(seed, *keys), 11).double() * 2.0**-53


def normal(seed: Tensor, *keys: Tensor | int) -> Tensor:
    """Return N(0, 1) as float64, by Box & Muller 1958; see `hashed` for the rest."""
    word = hashed(seed, *keys)
    radius = (-2 * torch.log1p(-uniform(word, 0))).sqrt()
    return radius * torch.cos(2 * math.pi * uniform(word, 1))
