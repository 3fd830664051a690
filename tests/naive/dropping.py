"""Slow twin of dropping at random: masks in Python's whole numbers, one entry at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.naive.lifecycle import word


def mask(shape: Sequence[int], p: float, updates: int, seed: int) -> Tensor:
    """Return 1/(1 − p) for what stays and 0 for what goes."""
    words = [word(updates, seed, i) for i in range(torch.Size(shape).numel())]
    numbers = [(each + 2**63) % 2**64 for each in words]  # in the order of signed words
    kept = [1 / (1 - p) if number >= p * 2**64 else 0.0 for number in numbers]
    return torch.tensor(kept).view(*shape)
