"""Drawn tensors, and how property tests draw."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**31)
property_test = settings(max_examples=25)


def normal(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
