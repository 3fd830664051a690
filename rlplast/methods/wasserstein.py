"""The Wasserstein regulariser: Lewandowski et al. 2024 (arXiv:2312.00246)."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Method, Network, State, method
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Wasserstein"]


@method("wasserstein", source="Lewandowski et al. 2024, Wasserstein regulariser")
@dataclass(frozen=True)
class Wasserstein(Method):
    """Pull the sorted entries of every tensor towards its sorted initial entries.

    coef · Σ_l r·Σ_i (sort(θ_l)_i − sort(θ0_l)_i)², a squared 2-Wasserstein distance. Every
    trainable tensor counts, a stacked critic's members apart.

    Attributes:
        coef: strength λ.
        reduce: ``mean``: r = 1/n, with n the entries of a tensor; ``sum``: r = 1. The paper's is
            not known.
    """

    coef: NonNegativeFloat = 1e-2
    reduce: Literal["mean", "sum"] = "mean"

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the sum of the distances of the Blocks."""
        terms = []
        for block in context.blocks:
            entries = at_least_float32(block.live()).flatten().sort().values
            apart = (entries - _start(context.network, block).to(entries)).square()
            terms.append(apart.mean() if self.reduce == "mean" else apart.sum())
        return self.coef * torch.stack(terms).sum()


def _start(network: Network, block: Block) -> Tensor:
    """Return the sorted entries of θ0, sorted again only once it was written to."""
    initial = network.initial[block.name]
    key = ("wasserstein", block.name)
    if network.cache.get(key, (-1,))[0] != initial._version:
        wide = at_least_float32(initial)
        network.cache[key] = initial._version, wide.flatten().sort().values
    return network.cache[key][1]
