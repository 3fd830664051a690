"""Where the weights are, in a few numbers: a trajectory that a run can log."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlplast.core.registry import register

__all__ = ["weight_sketch"]


@register("metrics", "weight_sketch", source="Charikar et al. 2002, count sketch")
def weight_sketch(
    weights: Sequence[Tensor], initial: Sequence[Tensor], size: int = 128, seed: int = 0
) -> Tensor:
    """Change of all weights since θ0 as a few numbers, between which distances are kept.

    Each entry of θ − θ0 is added to one of `size` sums, with a sign; both are drawn at random from
    the seed alone. So the sketch is linear, and the same for all times of a run and for all runs of
    one network. An inner product of two sketches is on average that of the two changes. A length
    has a standard error of 1/√(2·size) of itself: 6% for 128 numbers.

    Returns:
        Float64 tensor of shape (size,) on the CPU.
    """
    pairs = zip(weights, initial, strict=True)
    change = torch.cat([(a.double() - b.double()).flatten().cpu() for a, b in pairs])
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(2 * size, (len(change),), generator=generator)
    sums = torch.bincount(place, change, 2 * size)  # on the CPU it adds in one order
    return sums[:size] - sums[size:]
