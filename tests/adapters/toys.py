"""Two methods that read activations, and the real ones, as rows of a hook list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rlplast.core.method.context import Context
from rlplast.core.method.method import Method, State, method
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit
from rlplast.core.network.network import Network
from rlplast.core.network.units import UnitGroup

SCHEDULED: dict[str, dict[str, Any]] = {
    "toy_silent": {"every": "7 updates"},
    "redo": {"every": "7 updates", "params": {"probe": 16}},
}
INSIDE: dict[str, dict[str, Any]] = {
    "toy_least": {"every": "1 updates", "params": {"period": 5}},
    "cbp": {"every": "1 updates", "params": {"maturity": 2, "replacement_rate": 0.02}},
}
READING = SCHEDULED | INSIDE


def row(name: str, **more: Any) -> dict[str, Any]:
    """One of these as an entry of a hook list."""
    return {"method": name} | READING[name] | more


NEVER = row("toy_least", params={"period": 10**9})  # keeps its books and resets nothing
IDLE = row("toy_silent", every="3 updates", params={"at_most": -1.0})  # finds no such unit


def restart(group: UnitGroup, units: Tensor, incoming: dict[Block, Tensor]) -> list[Edit]:
    """New incoming weights and no outgoing ones, for some units."""
    edits: list[Edit] = [Assign(p.block, incoming[p.block], p.mask(units)) for p in group.incoming]
    for part in group.outgoing:
        edits.append(Assign(part.block, torch.zeros_like(part.block.view), part.mask(units)))
    return edits


@dataclass(frozen=True)
class Silent(Method):
    """Draw units anew whose mean activation is 0, or at most a number."""

    reads: ClassVar[tuple[str, ...]] = ("activations",)
    policies: ClassVar[tuple[str, str]] = ("keep", "leave")

    at_most: float = 0.0
    probe: Annotated[int, Field(ge=1, le=1000)] = 16

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        network.units_in(blocks)
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        edits, stream = [], context.stream()
        for group in context.units:
            silent = context.activations[group.name].mean(0) <= self.at_most
            blocks = [part.block for part in group.incoming]
            edits += restart(
                group, silent, {b: context.network.fresh(b, stream).to(b.view) for b in blocks}
            )
        return edits


@dataclass(frozen=True)
class Least(Method):
    """Put the least active unit of each layer back to θ0, every few updates."""

    reads: ClassVar[tuple[str, ...]] = ("activations",)

    period: PositiveInt = 5

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        groups = network.units_in(blocks)
        sizes = {f"size/{g.name}": torch.zeros(g.size) for g in groups}
        return sizes | {"updates": torch.zeros((), dtype=torch.int64)}

    def plan(self, context: Context, state: State) -> list[Edit]:
        edits: list[Edit] = [Assign(state["updates"], state["updates"] + 1)]
        due = (state["updates"] + 1) % self.period == 0
        for group in context.units:
            size = state[f"size/{group.name}"]
            now = size + context.activations[group.name].abs().mean(0)
            least = (torch.arange(group.size) == now.argmin()) & due
            initial = {p.block: context.network.initial[p.block.name] for p in group.incoming}
            edits += [Assign(size, now.where(~least, 0)), *restart(group, least, initial)]
        return edits


@dataclass(frozen=True)
class Slope(Method):
    """Take a step along the gradients; of a batch of its own if asked to."""

    policies: ClassVar[tuple[str, str]] = ("keep", "leave")
    reads: ClassVar[tuple[str, ...]] = ("gradients",)

    def plan(self, context: Context, state: State) -> list[Edit]:
        found = context.gradients
        return [Assign(b, b.view - found[b.name]) for b in context.blocks if b.name in found]


@dataclass(frozen=True)
class Replays(Slope):
    """The same of batches of the data."""

    reads: ClassVar[tuple[str, ...]] = ("batches",)

    def plan(self, context: Context, state: State) -> list[Edit]:
        (batch,) = context.batches(1, 8)
        found = context.gradients_on(batch)
        return [Assign(b, b.view - found[b.name]) for b in context.blocks if b.name in found]


def register() -> None:
    method("toy_silent", source="a test")(Silent)
    method("toy_least", source="a test")(Least)
    method("toy_slope", source="a test")(Slope)
    method("toy_replays", source="a test")(Replays)
