"""Slow twin of selective weight reinitialisation (arXiv:2508.00212), entry by entry.

Of a tensor with n entries the κ of least utility get new values, where κ is n·share rounded down,
or up if the uniform draw `chance` falls into the fraction. The utility is |w| or |w·g|.
"""

import math

import numpy as np
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
    places = list(np.ndindex(*weight.shape))
    utilities = [
        abs(float(weight[p]) * (1.0 if gradient is None else float(gradient[p]))) for p in places
    ]
    order = sorted(range(len(places)), key=lambda i: (utilities[i], i))
    after = weight.clone()
    for i in order[: count(len(places), share, chance)]:
        after[places[i]] = fresh[places[i]]
    return after
