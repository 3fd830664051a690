"""Slow twin of a head that reads features of length 1: sample by sample, in Python's floats."""

import math

import torch
from torch import Tensor


def head(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the outputs (samples, outputs) of a linear head on (samples, d)."""
    rows = []
    for feature in features.tolist():
        length = math.sqrt(math.fsum(value * value for value in feature)) or 1.0
        unit = [value / length for value in feature]
        rows.append(
            [
                math.fsum(w * u for w, u in zip(row, unit, strict=True)) + b
                for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
            ]
        )
    return torch.tensor(rows)
