"""Head reset: Nikishin et al. 2022; a baseline of the S&P and SWR papers (SWR D.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt
from torch import Tensor

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, method
from rlplast.core.method.once import plain
from rlplast.core.method.scope import QUERY_KEY
from rlplast.core.network.order import last_layers

__all__ = ["HeadReset", "head_reset"]

_OUTPUTS = "the network's outputs"  # no module's path: a path has no spaces


@method("head_reset", source="Nikishin et al. 2022; SWR D.2")
@dataclass(frozen=True)
class HeadReset(Method):
    """Give the head initial weights again: the linear layers after convs, or an MLP's last layer.

    Weights and biases of the chosen layers are edited, of every member in a stacked ensemble; a
    tied head is refused. The last layers are those that give the network's outputs: flagged,
    declared or traced; the others count in registration order.

    Attributes:
        layers: how many linear layers, counted from the last, heads side by side (an actor's
            mean and log σ) as one; None for all of them in a network with convs (but one in a
            transformer, whose patches a conv embeds), else one.
        init: ``fresh`` draws from the layer's initializer, ``stored`` returns to θ0.
    """

    layers: PositiveInt | None = None
    init: Literal["fresh", "stored"] = "fresh"

    def setup(self, network: Network, blocks: Sequence[Block]) -> dict[str, Tensor]:
        """Keep no state; refuse a network that has no such head."""
        if blocks:
            head_blocks(network, blocks, self.layers)
        return {}

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan new values for the head's weights and biases."""
        generator = context.stream()
        network = context.network
        edits: list[Edit] = []
        for block in head_blocks(network, context.blocks, self.layers):
            if block.aliases:
                raise ConfigError(
                    f"{network.qualified(block)} is tied to {', '.join(block.aliases)}: "
                    "head_reset would reset both"
                )
            stored = self.init == "stored"
            value = network.initial[block.name] if stored else network.fresh(block, generator)
            edits.append(Assign(block, value))
        return edits


def head_blocks(
    network: Network, blocks: Sequence[Block], layers: int | None, method: str = "head_reset"
) -> list[Block]:
    """Return the Blocks of the head, of every member; `layers` is as in `HeadReset`."""
    place = {path: i for i, (path, _) in enumerate(network.module.named_modules())}
    last = last_layers(network)
    by_member: dict[int | None, dict[str, list[Block]]] = {}
    for block in blocks:
        tied = block.role == "embedding" and bool(block.aliases)
        if block.kind == "linear" or tied:  # a head tied to an embedding is where the head is
            path = block.aliases[0].rpartition(".")[0] if tied else block.path
            # Layers that give the outputs side by side are one layer, after all others.
            path = _OUTPUTS if path in last else path
            by_member.setdefault(block.spec.member, {}).setdefault(path, []).append(block)
    chosen: list[Block] = []
    for linears in by_member.values():
        convs = any(b.kind == "conv" for b in network.blocks)
        attends = any(b.layer.rpartition(".")[2] in QUERY_KEY for b in network.blocks)
        count = layers or (len(linears) if convs and not attends else 1)
        if count > len(linears):
            raise ConfigError(
                f"{method}.layers = {count}: {network.name} has {len(linears)} linear layers"
            )
        chosen += [
            block
            for path in sorted(linears, key=lambda path: place.get(path, len(place)))[-count:]
            for block in linears[path]
        ]
    if not chosen:
        raise NothingToEdit(f"{method} finds no linear layer in network {network.name!r}")
    return chosen


head_reset = plain(HeadReset)
"""Reset the head of a model once, in place."""
