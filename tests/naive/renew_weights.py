"""Slow twin of selective weight reinitialisation (arXiv:2508.00212), entry by entry.

Of a tensor with n entries the κ of least utility get new values, where κ is n·share rounded down,
or up if the uniform draw `chance` falls into the fraction. The utility is |w| or |w·g|.
"""

import math

from torch import Tensor


def count(entries: int, share: float, chance: float) -> int:
    """κ; up with the probability of the fraction."""
    exact = entries * share
    down = math.floor(exact)
    return down + (chance >= 1 - (exact - down))


def renewed(
    weight: Tensor, gradient: Tensor | None, fresh: Tensor, share: float, chance: float
) -> Tensor:
    """The tensor afterwards; `gradient` is None for the utility |w|."""
    utility = weight.detach().double() * (1.0 if gradient is None else gradient.double())
    utilities = utility.abs().flatten().tolist()
    order = sorted(range(len(utilities)), key=lambda i: (utilities[i], i))
    after = weight.detach().flatten().clone()
    for i in order[: count(len(order), share, chance)]:
        after[i] = fresh.flatten()[i]
    return after.view(weight.shape)
