"""InFeR, initial feature regularization: Lyle et al. 2022 (arXiv:2204.09560)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Network, State, method
from rlplast.core.network.record import WithWeights
from rlplast.core.validation import Count
from rlplast.methods.draws import symmetric
from rlplast.methods.features import OutputTerm, Reading, head_layers
from rlplast.metrics.new_targets import tensors_with
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Infer"]


@method("infer", source="Lyle et al. 2022, InFeR (arXiv:2204.09560)")
@dataclass(frozen=True)
class Infer(OutputTerm):
    """Keep random directions of the last features where they were at initialisation: InFeR.

    coef · Σᵢ mean (⟨wᵢ, φ_θ(x)⟩ − β⟨wᵢ, φ_θ0(x)⟩)² over a batch x of its own. φ is what the layer
    reads that gives the network's outputs (of a GPT at every token); the w are `heads` fixed
    vectors, U(±1/√d) in each entry. Both are computed in evaluation mode, at θ0 with the buffers
    of then. θ0 is the run's, also after a hook has drawn weights anew.

    Attributes:
        coef: strength of the term.
        beta: β, the factor of the features at initialisation.
        heads: how many directions.
        batch: samples of the batch.
    """

    coef: NonNegativeFloat = 0.1
    beta: NonNegativeFloat = 1.0
    heads: Count = 10
    batch: Count = 32

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state: directions are hashes of the seed."""
        self.check_whole(network, blocks)
        head_layers(network, self.name)
        return {}

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the sum over directions, heads and members."""
        network, layers = context.network, head_layers(context.network, self.name)
        [batch] = context.batches(1, self.batch)
        initial = tensors_with(network, lambda block: network.initial[block.name])
        start = Reading(WithWeights(network.module, initial), layers)
        now = Reading(network.module, layers)
        with torch.no_grad():
            context.outputs(batch, start)
        context.outputs(batch, now)
        terms, pairs = [], zip(start.found, now.found, strict=True)
        for place, ((_, then), (layer, features)) in enumerate(pairs):
            moved = at_least_float32(features) - self.beta * at_least_float32(then)
            apart = hasattr(layer, "members") and moved.ndim > 2
            moved = moved.flatten(int(apart), -2)  # (members,) samples, width
            error = moved @ self._directions(context, place, moved).mT
            terms.append(error.square().mean(-2).sum())
        return self.coef * torch.stack(terms).sum()

    def _directions(self, context: Context, place: int, features: Tensor) -> Tensor:
        width, device = features.shape[-1], features.device
        unit = torch.arange(self.heads, device=device).unsqueeze(1)
        entry, zero = torch.arange(width, device=device), torch.zeros_like(unit)
        drawn = symmetric(features.dtype, zero, context.seed, place, unit, entry)
        return drawn / width**0.5
