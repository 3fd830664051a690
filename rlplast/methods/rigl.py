"""RigL: Evci et al. 2020, Algorithm 1; google-research/rigl, `sparse_optimizers_base.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.blocks import blocks_of
from rlplast.core.network.network import INSTALLED
from rlplast.core.network.order import matrices
from rlplast.core.validation import Fraction, Share, Updates
from rlplast.methods.draws import hashed
from rlplast.methods.recycling import largest

__all__ = ["RigL", "erk"]


@method("rigl", key="layers", source="Evci et al. 2020, Algorithm 1")
@dataclass(frozen=True)
class RigL(Method):
    """Train with sparse weights, and move the non-zero ones from time to time: RigL.

    After every update the weights of linear and conv layers, heads included, are 0 outside a mask,
    and so is what the optimizer remembers of them. Every `every` updates a layer gives up its
    smallest weights and takes as many others, where the gradient of the loss is largest; these
    begin at 0. The first update is of dense weights; and what a hook writes outside the mask lives
    until the next update is made.

    Attributes:
        sparsity: the share of all weights of the network that are 0.
        every: updates between two moves of the masks.
        until: the update from which the masks stay; 75% of a run in the paper.
        alpha: the share of a layer's weights that the first move would exchange; it falls by a
            half cosine to 0 at `until`.
        distribution: ``erk``: a layer's density is in proportion to Σ sizes/Π sizes of its weight,
            at most 1; ``uniform``: the same for all, but the first layer stays dense.
    """

    reads = ("gradients", "moments")

    sparsity: Fraction = 0.9
    every: Updates = 100
    until: Annotated[int, Field(ge=0, le=1_000_000_000)] = 25000
    alpha: Share = 0.3
    distribution: Literal["erk", "uniform"] = "erk"

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Change no module; return the paths of the layers whose weights are sparse."""
        weights = [b for b in blocks_of(model) if b.role == "weight" and not b.aliases]
        paths = list(dict.fromkeys(b.path for b in weights if b.kind in ("linear", "conv")))
        if not paths:
            raise NothingToEdit("rigl finds no weight of a linear or conv layer")
        if any(isinstance(other, RigL) for other in vars(model).get(INSTALLED, ())):
            raise ConfigError(f"rigl: {paths[0]} is sparse by it already")
        return paths

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return a mask per weight that is not dense, drawn by a hash of θ0 (ours)."""
        return {b.name: _random(network.initial[b.name], n) for b, n in self._zeros(network)}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan zeros outside the masks, and at every `every`-th update the new masks."""
        updates = context.clock.updates
        edits: list[Edit] = []
        gradients = context.gradients if self.captured_key(context.clock) else {}
        for block, count in self._zeros(context.network):
            mask = kept = state[block.name]
            if block.name in gradients:
                active = mask.numel() - count
                new = self._moved(block, mask, gradients[block.name], active, updates)
                kept = mask & new  # what is new begins at 0
                edits.append(Assign(mask, new))
            edits.append(Assign(block, torch.zeros_like(block.view), ~kept))
            moments = context.moments(block).values()
            edits += [Assign(moment, torch.zeros_like(moment), ~kept) for moment in moments]
        return edits

    def captured_key(self, clock: Clock) -> int:
        """Return the updates done if the masks move, whose share falls with them; else 0."""
        moves = clock.updates % self.every == 0 and clock.updates < self.until
        return clock.updates if moves else 0

    def _moved(
        self, block: Block, mask: Tensor, gradient: Tensor, active: int, updates: int
    ) -> Tensor:
        """Return a mask without its smallest weights, and with as many others."""
        share = self.alpha / 2 * (1 + math.cos(math.pi * updates / self.until))
        moved = int(active * share)
        stays = largest(block.view.abs().where(mask, -1.0), active - moved)
        return stays | largest(gradient.abs().where(~stays, -1.0), moved)

    def _zeros(self, network: Network) -> list[tuple[Block, int]]:
        """Return the weights that are not dense, and how many entries of each are 0."""
        key = (self, "zeros")
        if key not in network.cache:
            weights = matrices(network, network.trainable())
            if self.distribution == "erk":
                counts = erk([tuple(b.view.shape) for b in weights], self.sparsity)
            else:
                first = weights[0].path
                counts = [int(self.sparsity * b.view.numel()) * (b.path != first) for b in weights]
            pairs = zip(weights, counts, strict=True)
            network.cache[key] = [(b, n) for b, n in pairs if n]
        return network.cache[key]


def _random(initial: Tensor, count: int) -> Tensor:
    """Return a mask with `count` zeros; its draw is a hash of the values of θ0 and their places."""
    bits = initial.float().contiguous().view(torch.int32).flatten().long()
    words = hashed(bits, torch.arange(len(bits), device=bits.device))
    return largest(words.view(initial.shape), initial.numel() - count)


def erk(shapes: Sequence[tuple[int, ...]], sparsity: float) -> list[int]:
    """Return how many entries of each weight are 0, by Erdős-Rényi-Kernel densities.

    Args:
        shapes: of the weights.
        sparsity: the share of all entries that are 0.

    Examples:
        >>> erk([(8, 4), (2, 8)], 0.5)
        [18, 5]
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    missing = [math.floor(sparsity * size) for size in sizes]  # were all densities equal
    rest, factor = list(range(len(sizes))), 0.0
    while rest:
        dense = [i for i in range(len(sizes)) if i not in rest]
        ones = sum(sizes[i] - missing[i] for i in rest) - sum(missing[i] for i in dense)
        factor = ones / sum(raw[i] * sizes[i] for i in rest)
        most = max(raw[i] for i in rest)
        if most * factor <= 1:
            break
        rest = [i for i in rest if raw[i] != most]  # others are dense, and these give the zeros
    return [
        math.floor((1 - factor * raw[i]) * size) if i in rest else 0 for i, size in enumerate(sizes)
    ]
