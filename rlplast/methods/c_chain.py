"""C-CHAIN, continual churn approximated reduction: Tang et al. 2025 (arXiv:2506.00592)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Assign, Block, Context, Edit, Network, State, method
from rlplast.core.network.record import WithWeights
from rlplast.core.validation import Count
from rlplast.methods.features import OutputTerm, members

__all__ = ["CChain"]

FIXED = 10_000  # updates with strength `coef`, before `beta` sets it
WINDOW = 50_000  # updates whose losses `beta` reads


@method("c_chain", source="Tang et al. 2025, C-CHAIN; code of its double DQN")
@dataclass(frozen=True)
class CChain(OutputTerm):
    """Keep an update from changing the outputs on data it does not train on: C-CHAIN.

    λ · mean (f_θ(x) − f_θ'(x))² over a batch x of its own and all outputs; θ' are the weights one
    update before, and get no gradient. Entries that a hook has written since then have their new
    value in θ' too, so that nothing pulls an edit back. Before the second update, and right after
    an edit of all weights, the term is 0.

    λ is `coef`. With `beta` it is so for 10 000 updates; then β · mean |loss| / (mean (term/λ) +
    1e-8), over the last 50 000 updates.

    Attributes:
        coef: strength λ, while `beta` does not set it.
        beta: size of the term relative to the loss; None for a fixed strength.
        batch: samples of the batch.
    """

    coef: NonNegativeFloat = 50.0
    beta: NonNegativeFloat | None = None
    batch: Count = 32

    @property
    def reads_loss(self) -> bool:
        """Whether `beta` sets the strength."""
        return self.beta is not None

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the weights as they are, twice; with `beta` a ring of losses, −1 where empty."""
        self.check_whole(network, blocks)
        state = {}
        for name, parameter in _trained(network).items():
            state[f"previous/{name}"] = parameter.detach().clone()
            state[f"latest/{name}"] = parameter.detach().clone()
        if self.beta is not None:
            state["losses"] = torch.full((2, WINDOW), -1.0, device=blocks[0].view.device)
        return state

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan to remember the weights, and those of one update before."""
        edits: list[Edit] = []
        for name, parameter in _trained(context.network).items():
            previous, latest = state[f"previous/{name}"], state[f"latest/{name}"]
            edits += [Assign(previous, latest), Assign(latest, parameter.detach())]  # in this order
        return edits

    def term(self, context: Context, state: State) -> Tensor:
        """Return λ times the mean square, summed over the members of an ensemble."""
        [batch] = context.batches(1, self.batch)
        reference = {}
        for name, parameter in _trained(context.network).items():
            live = parameter.detach()
            kept = live == state[f"latest/{name}"]
            reference[name] = torch.where(kept, state[f"previous/{name}"], live)
        with torch.no_grad():
            before = context.outputs(batch, WithWeights(context.network.module, reference))
        moved = members(context.blocks) * (context.outputs(batch) - before).square().mean()
        return self._strength(context, state, moved.detach()) * moved

    def _strength(self, context: Context, state: State, moved: Tensor) -> Tensor | float:
        """Return λ of this update, then note its losses; updates without churn count for |L|."""
        if self.beta is None:
            return self.coef
        losses, updates = state["losses"], context.clock.updates
        noted = losses >= 0
        means = losses.where(noted, 0).sum(1) / noted.sum(1)
        ready = noted.any(1).all() & (updates >= FIXED)
        strength = torch.where(ready, self.beta * means[0] / (means[1] + 1e-8), self.coef)
        if context.loss is not None:
            now = torch.stack([context.loss.abs(), moved.where(moved > 0, -1)])
            losses[:, updates % WINDOW] = now.to(losses)
        return strength


def _trained(network: Network) -> dict[str, Tensor]:
    return {n: p for n, p in network.module.named_parameters() if p.requires_grad}
