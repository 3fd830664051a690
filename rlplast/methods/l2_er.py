"""L2-ER: Prakash et al. 2026 (arXiv:2509.22335), and their code lop-jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Network, State, method
from rlplast.methods.features import OutputTerm, Reading, readers
from rlplast.methods.l2 import sum_of_squares
from rlplast.metrics.ranks import at_least_float32

__all__ = ["L2ER", "lost_rank"]

EPS = 1e-8  # in the logarithm, as in the official code


def lost_rank(features: Tensor) -> Tensor:
    """Return m − exp(entropy of σ/Σσ), one number per leading index, differentiable.

    Args:
        features: (…, samples, width), whose singular values are σ; m is the smaller of both sizes.
    """
    sizes = torch.linalg.svdvals(features)
    total = sizes.sum(-1, keepdim=True)
    shares = sizes / torch.where(total > 0, total, 1.0)
    entropy = -(shares * (shares + EPS).log()).sum(-1)
    return sizes.shape[-1] - entropy.exp()


@method("l2_er", source="Prakash et al. 2026, L2-ER (arXiv:2509.22335); lop-jax")
@dataclass(frozen=True)
class L2ER(OutputTerm):
    """Pull weights towards 0, and hidden features towards full effective rank: L2-ER.

    coef/2 · ‖θ‖² + rank_coef · meanₗ (m − exp H(σₗ/Σσₗ)). σₗ are the singular values of features l
    on a batch of its own, a row per sample and m of them at most: what layers read that read
    hidden units, and what the head reads. All of a conv's pixels, or of a transformer's tokens,
    are one row. Members of an ensemble count each. Features are computed in evaluation mode.

    Attributes:
        coef: strength λ of the decay.
        rank_coef: strength of the effective rank.
        batch: samples of the batch.
    """

    coef: NonNegativeFloat = 1e-4
    rank_coef: NonNegativeFloat = 1e-2
    batch: Annotated[int, Field(ge=2, le=1_000_000)] = 100

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state."""
        self.check_whole(network, blocks)
        readers(network, self.name)
        return {}

    def term(self, context: Context, state: State) -> Tensor:
        """Return both terms, summed over the members of an ensemble."""
        weights = [at_least_float32(block.live()) for block in context.blocks]
        [batch] = context.batches(1, self.batch)
        reading = Reading(context.network.module, readers(context.network, self.name))
        context.outputs(batch, reading)
        lost = []
        for layer, features in reading.found:
            apart = hasattr(layer, "members") and features.ndim > 2
            rows = at_least_float32(features).flatten(1 + int(apart))  # (members,) samples, width
            lost.append(lost_rank(rows).sum())
        decay = self.coef / 2 * sum_of_squares(weights)
        return decay + self.rank_coef * torch.stack(lost).mean()
