"""Units: which entries of a network's tensors belong to which hidden unit.

A unit is an output of a linear layer, a channel of a conv, or a head of an attention, and is
private: nothing but the layers downstream reads it. What a residual stream holds is no unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.network.blocks import Block
from rlplast.core.network.unit_walk import Step

__all__ = [
    "NONLINEARITY",
    "PER_UNIT",
    "ActivationPoint",
    "Part",
    "Step",
    "UnitGroup",
    "UnitMap",
    "UnitSpec",
    "activated",
]

NONLINEARITY = "own_nonlinearity"  # attribute of layers whose nonlinearity a method replaced
PER_UNIT = "per_unit"  # attribute of nonlinearities whose tensors have an entry per unit
_PARTS = ("incoming", "norms", "slopes", "outgoing")


@dataclass(frozen=True)
class UnitSpec:
    """The units of one layer, as a module declares them; paths are relative to the module.

    Attributes:
        layer: path of the layer whose outputs the units are.
        downstream: paths of the layers that read them.
        norms: paths of the norm layers in between.
        nonlinearity: what is applied to the output of the layer, or of the first norm. It is not
            looked up: name it if it is not ReLU.
        heads: for a projection to query, key and value: the number of heads. Each head is a unit
            without an activation. 0 for all other layers.
        beside: paths of other layers whose rows belong to the same units: those of key and value,
            if they are separate from the query's.
        norms_last: whether the norms come after the nonlinearity.
        replaceable: whether the module gets its nonlinearity from `activated`, so that a method can
            replace it.
    """

    layer: str
    downstream: tuple[str, ...]
    norms: tuple[str, ...] = ()
    nonlinearity: Step = F.relu
    heads: int = 0
    beside: tuple[str, ...] = ()
    norms_last: bool = False
    replaceable: bool = False


def activated(layer: nn.Module, z: Tensor, nonlinearity: Step) -> Tensor:
    """Return nonlinearity(z), or what a method has put in its place for this layer."""
    replaced = getattr(layer, NONLINEARITY, None)
    return nonlinearity(z) if replaced is None else replaced(z)


@dataclass(frozen=True, eq=False)
class Part:
    """Which entries of a Block belong to a unit.

    Unit i owns the indices i·repeat … (i + 1)·repeat − 1 along dimension `dim`.

    Attributes:
        block: the Block.
        dim: the dimension along which units lie: 0 for incoming, 1 for outgoing weights.
        repeat: indices per unit: the pixels of a flattened channel, the rows of a head.
    """

    block: Block
    dim: int
    repeat: int = 1

    def __str__(self) -> str:
        """Return the entries of unit i, such as ``fc2.weight[:, 4i:4i+4]``."""
        entries = "i" if self.repeat == 1 else f"{self.repeat}i:{self.repeat}i+{self.repeat}"
        return f"{self.block.name}[{':, ' * self.dim}{entries}]"

    def along(self, per_unit: Tensor) -> Tensor:
        """Return a value per index along `dim` from a value per unit."""
        return per_unit if self.repeat == 1 else per_unit.repeat_interleave(self.repeat)

    def spread(self, per_unit: Tensor) -> Tensor:
        """Return a value per index from a value per unit, shaped to broadcast over the Block."""
        whole = self.along(per_unit)
        after = self.block.view.ndim - self.dim - 1
        return whole.view(*(1,) * self.dim, -1, *(1,) * after)

    def mask(self, per_unit: Tensor) -> Tensor:
        """Return a boolean tensor of the Block's shape from a boolean per unit."""
        return self.spread(per_unit).expand(self.block.view.shape)


@dataclass(frozen=True)
class ActivationPoint:
    """Where activations can be read in anybody's module.

    Attributes:
        path: path of the layer or norm whose output is taken.
        steps: what the module does to that output, up to and with the nonlinearity.
        units: number of units of a conv, whose flattened channels may lie next to each other; 0 for
            linear layers, whose units are the last dimension.
        members: how many a stacked layer has: the first dimension of its output; 0 for others.
        between: what else, such as dropout or pooling, lies between the layer and its readers.
        norms: paths of the norm layers in between, in forward order.
        nonlinearity: path of the module that is the nonlinearity, which nothing else uses; empty
            where it is asked of `activated`; None where it cannot be replaced.
    """

    path: str
    steps: tuple[Step, ...]
    units: int = 0
    members: int = 0
    between: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    nonlinearity: str | None = None

    def read(self, output: Tensor, stacked: bool = True) -> list[Tensor]:
        """Return activations (samples, units, …) of a module's output, one per member.

        Of a stacked layer it has all members, or, if it is not `stacked`, one.
        """
        value = output.detach()
        for step in self.steps:
            value = step(value)
        if self.units and value.ndim == 2:
            value = value.unflatten(1, (self.units, -1))
        members = list(value) if self.members and stacked else [value]
        return [m.flatten(0, -2) if m.ndim > 2 and not self.units else m for m in members]


@dataclass(frozen=True, eq=False, repr=False)
class UnitGroup:
    """The hidden units of one layer, or of one member of a stacked layer.

    Attributes:
        name: the layer's path, with the member if it is stacked: ``fc1``, ``[0].fc1``.
        size: number of units.
        incoming: rows of the layer's weight and bias.
        norms: entries of norm layers in between: scale, shift, running statistics.
        outgoing: columns of the weights downstream, those of frozen copies (buffers) among them.
        activation: name of its activations, which are (samples, units, …); None for heads.
        nonlinearity: such as ``relu`` or ``gelu``; ``linear`` if there is none.
        point: where the activations can be read by a forward hook; None for heads.
        slopes: entries of the nonlinearity, if it has tensors with one per unit.
    """

    name: str
    size: int
    incoming: tuple[Part, ...]
    norms: tuple[Part, ...]
    outgoing: tuple[Part, ...]
    activation: str | None
    nonlinearity: str
    point: ActivationPoint | None
    slopes: tuple[Part, ...] = ()

    def __repr__(self) -> str:
        parts = ", ".join(map(str, self.parts))
        return f"UnitGroup({self.name}: {self.size} {self.nonlinearity}; unit i owns {parts})"

    @property
    def weight(self) -> Part:
        """The incoming weight (for heads the query's)."""
        return self.incoming[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All entries of its units."""
        return (*self.rows, *self.outgoing)

    @property
    def rows(self) -> tuple[Part, ...]:
        """What a unit has for itself: all but its outgoing weights."""
        return (*self.incoming, *self.norms, *self.slopes)

    def of(self, names: Mapping[str, Block]) -> "UnitGroup":
        """Return the same group of another network of equal layers, by names of Blocks."""

        def other(parts: tuple[Part, ...]) -> tuple[Part, ...]:
            return tuple(Part(names[p.block.name], p.dim, p.repeat) for p in parts)

        parts = {key: other(getattr(self, key)) for key in _PARTS}
        return replace(self, **parts)


@dataclass(frozen=True)
class UnitMap:
    """All units of a network.

    Attributes:
        groups: the groups, in forward order as far as it is known.
        refused: layer → why its outputs are no units.
        untraced: those whose module cannot be traced: they may have units.
        heads: layers that give the network's outputs, as far as the network can be traced.
        others: where activations can be read that are no units, by name: of layers that give each
            output twice, and of a stream (``stream_activations()`` of the module).
    """

    groups: tuple[UnitGroup, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    untraced: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    others: Mapping[str, ActivationPoint] = field(default_factory=dict)

    def points(self) -> dict[str, ActivationPoint]:
        """Return where all activations can be read, by name."""
        return {g.name: g.point for g in self.groups if g.point is not None} | dict(self.others)
