"""PFO, proximal feature optimisation: Moalla et al. 2024 (arXiv:2405.00662), and their code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.method.method import Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.units import UnitGroup
from rlplast.core.validation import Count
from rlplast.methods.features import Reading, read_by_heads
from rlplast.methods.past import past_self, remember, room
from rlplast.metrics.ranks import at_least_float32

__all__ = ["PFO"]


@method("pfo", source="Moalla et al. 2024, PFO (arXiv:2405.00662); its code", key="hooks")
@dataclass(frozen=True)
class PFO(Method):
    """Keep pre-activations near those of the network as it was at the last firing: PFO.

    A firing remembers the network and changes nothing. From then on the loss of every update has
    the term coef · mean (z(x) − z_past(x))² over a batch x of its own and all entries of z, what
    hidden layers give right before the nonlinearity: a conv's at every pixel, a transformer's at
    every token. With a PPO whose hook fires once per rollout, z_past is that of the networks that
    collected it. What another hook writes is pulled back until the next firing.

    Attributes:
        coef: strength of the term.
        layers: whether z is of all hidden layers in scope, or of those alone that the head reads.
            Where it reads no hidden units, as of a residual stream, z is of all.
        batch: samples of the batch.
    """

    reads = ("batches",)
    policies = ("keep", "leave")

    coef: NonNegativeFloat = 1.0
    layers: Literal["last", "all"] = "last"
    batch: Count = 64

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return room for the network as it was."""
        self._points(network, network.units_in(blocks))
        return room(network)

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan to remember the network."""
        return remember(self.name, context.network, state)

    def term(self, context: Context, state: State) -> Tensor:
        """Return the term, summed over the members of an ensemble."""
        network = context.network
        points = self._points(network, context.units)
        layers = [network.module.get_submodule(path) for path in points]
        [batch] = context.batches(1, self.batch)
        then = Reading(past_self(network, state), layers, outputs=True)
        now = Reading(network.module, layers, outputs=True)
        with torch.no_grad():
            context.outputs(batch, then)
        context.outputs(batch, now)
        counts = dict(zip(layers, points.values(), strict=True))
        squares: dict[int, list[Tensor]] = {}  # by how many members lie side by side
        for (layer, after), (_, before) in zip(now.found, then.found, strict=True):
            moved = at_least_float32(after) - at_least_float32(before)
            squares.setdefault(counts[layer], []).append(moved.square().flatten())
        means = [max(1, count) * torch.cat(parts).mean() for count, parts in squares.items()]
        return self.coef * torch.stack(means).sum()

    def _points(self, network: Network, groups: Sequence[UnitGroup]) -> dict[str, int]:
        """Return the layers or norms whose outputs are z, and how many members each has."""
        if self.layers == "last":
            read = read_by_heads(network, groups, self.name).values()
            if all(read):
                groups = [g for g in groups if any(g in of_head for of_head in read)]
        return {g.point.path: g.point.members for g in groups if g.point is not None}
