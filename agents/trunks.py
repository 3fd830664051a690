"""What comes before the heads of SAC's networks: one kind of trunk each, alone or per critic.

Sources: SimBa (Lee et al. 2025, as in FIRE's SAC), SimbaV2 (Lee et al. 2025b,
`rlplast.agents.simba_v2`), BroNet (Nauman et al. 2024, arXiv:2405.16158, Section 3), plain layers
as in Stable-Baselines3.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.encoders import DRQ_CONVS
from rlplast.agents.networks import ACTIVATIONS, Activation, Convs, convs_of, orthogonal
from rlplast.agents.simba_v2 import (
    SCALED_HEAD,
    LerpBlock,
    ScaledHead,
    Scaler,
    linear,
    scale_of,
    unit,
    with_shift,
)
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import torch_default
from rlplast.core.network.order import Order
from rlplast.core.network.record import Keep
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear, computed
from rlplast.core.network.units import NONLINEARITY, Step, UnitSpec, activated

__all__ = ["KINDS", "RESIDUAL", "TrunkNetwork", "TrunkSpec", "is_plain"]

# The layers of a residual block, in forward order.
_LAYERS = {
    "simba": ("norm", "fc1", "fc2"),
    "simba_v2": ("fc1", "scaler", "fc2", "alpha"),
    "bro": ("fc1", "norm1", "fc2", "norm2"),
}
RESIDUAL = tuple(_LAYERS)
KINDS = (*RESIDUAL, "mlp", "drq")
EXPANSION = 4  # of the hidden layer inside a residual block
NORM_EPS = 1e-6  # flax's default
# Standard deviation of a standard normal cut at ±2; he_normal divides by it.
CUT_NORMAL_STD = 0.87962566103423978


@dataclass(frozen=True)
class TrunkSpec:
    """What comes before the heads."""

    kind: str  # of `KINDS`; ``drq`` is an ``mlp`` of what pictures are encoded to
    width: int  # units of a layer; of the stream in a residual trunk
    blocks: int  # residual blocks, or hidden layers of the others
    init: str = "auto"  # or ``orthogonal``, see `TrunkNetwork.init_block`
    activation: Activation = "relu"
    hidden: tuple[int, ...] | None = None  # widths of plain layers, for `width` and `blocks`
    convs: Convs = DRQ_CONVS  # of ``drq``
    features: int = 50  # of ``drq``: numbers that features of pictures are projected to

    @classmethod
    def of(cls, agent: Any, network: str) -> "TrunkSpec":
        """Return what a SAC's section ``agent`` says of its ``actor`` or ``critic``."""
        return cls(
            agent.network,
            getattr(agent, f"{network}_width"),
            getattr(agent, f"{network}_blocks"),
            agent.init,
            agent.activation,
            None if agent.hidden is None else tuple(agent.hidden),
            DRQ_CONVS if agent.convs is None else convs_of(agent.convs),
            agent.features,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers of what is not residual."""
        return (self.width,) * self.blocks if self.hidden is None else self.hidden


_STACKED = (StackedLinear, StackedLayerNorm, Scaler)


def is_plain(layer: nn.Module) -> bool:
    """Say whether a stacked layer is as built: no method or hook changes what it computes."""
    if isinstance(layer, ScaledHead):
        return all(map(is_plain, layer.children()))
    hooked = any(type(hook) is not Keep for hook in layer._forward_hooks.values())
    hooked = hooked or layer._forward_pre_hooks or hasattr(layer, NONLINEARITY)
    return type(layer) in _STACKED and not hooked


class _ResidualBlock(nn.Module):
    """x plus what layers in a row make of it, with a nonlinearity before ``fc2``."""

    fc1: nn.Module

    def __init__(self, layers: dict[str, nn.Module], nonlinearity: Step) -> None:
        super().__init__()
        self.names, self.nonlinearity = tuple(layers), nonlinearity
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        z = x
        for name in self.names:
            if name == "fc2":
                z = activated(self.fc1, z, self.nonlinearity)
            z = computed(getattr(self, name), z, member)
        return x + z


class TrunkNetwork(nn.Module):
    """A trunk with heads side by side; in `members` copies if that is not None.

    ``simba``: input linear, residual blocks x + fc2(f(fc1(norm(x)))) with 4·width units inside, a
    last norm. ``simba_v2``: see `rlplast.agents.simba_v2`. ``bro``: input linear, norm and f,
    residual blocks x + norm2(fc2(f(norm1(fc1(x))))) with width units inside. Others: fc1, fc2, …
    Residual networks are not homogeneous: SWR's Theorem 1 holds for an ``mlp`` only.
    """

    def __init__(
        self, d_in: int, trunk: TrunkSpec, heads: dict[str, int], members: int | None = None
    ) -> None:
        super().__init__()
        self.trunk, self.members = trunk, members
        self.heads: tuple[str, ...] = tuple(heads)
        self.activation = ACTIVATIONS[trunk.activation]
        if trunk.kind in RESIDUAL:
            width = self._residual(d_in)
        else:
            width = d_in
            for i, width in enumerate(trunk.widths):
                self.add_module(f"fc{i + 1}", linear(members, d_in, width))
                d_in = width
        for name, d_out in heads.items():
            v2 = trunk.kind == "simba_v2"
            head = ScaledHead(width, d_out, members) if v2 else linear(members, width, d_out)
            self.add_module(name, head)

    def _residual(self, d_in: int) -> int:
        """Build a residual trunk; return what it gives the heads."""
        kind, width, members = self.trunk.kind, self.trunk.width, self.members
        v2 = kind == "simba_v2"
        self.input = linear(members, d_in + v2, width, bias=not v2)
        if v2:
            self.scaler = Scaler(width, scale_of(width), scale_of(width), members)
        if kind == "bro":
            self.norm = self._norm(width)
        self.blocks = nn.ModuleList(self._block(width) for _ in range(self.trunk.blocks))
        if kind == "simba":
            self.norm = self._norm(width)
        return width

    def _norm(self, dim: int) -> nn.Module:
        if self.members is None:
            return nn.LayerNorm(dim, eps=NORM_EPS)
        return StackedLayerNorm(self.members, dim, eps=NORM_EPS)

    def _block(self, width: int) -> nn.Module:
        kind, nonlinearity, members = self.trunk.kind, self.activation[1], self.members
        inner = width if kind == "bro" else EXPANSION * width
        if kind == "simba_v2":
            return LerpBlock(width, inner, self.trunk.blocks, nonlinearity, members)
        fc1, fc2 = linear(members, width, inner), linear(members, inner, width)
        if kind == "simba":
            layers = {"norm": self._norm(width), "fc1": fc1, "fc2": fc2}
        else:
            norms = self._norm(width), self._norm(width)
            layers = {"fc1": fc1, "norm1": norms[0], "fc2": fc2, "norm2": norms[1]}
        return _ResidualBlock(layers, nonlinearity)

    def _trunk_order(self) -> list[str]:
        kind = self.trunk.kind
        if kind not in RESIDUAL:
            return [f"fc{i + 1}" for i in range(len(self.trunk.widths))]
        inner = [f"blocks.{i}.{n}" for i in range(self.trunk.blocks) for n in _LAYERS[kind]]
        if kind == "simba":
            return ["input", *inner, "norm"]
        return ["input", "norm" if kind == "bro" else "scaler", *inner]

    def forward_order(self) -> Order:
        """Return the layers' names in forward order; heads, side by side, last."""
        before = [*self._before_trunk(), *self._trunk_order()]
        if self.trunk.kind != "simba_v2":
            return [*before, self.heads]
        return [*before, *(f"{head}.{name}" for head in self.heads for name in SCALED_HEAD)]

    def _before_trunk(self) -> list[str]:
        """Return the layers that read pictures."""
        return ["projection.linear", "projection.norm"] if self.trunk.kind == "drq" else []

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer; those of a residual stream are none."""
        if self.trunk.kind in RESIDUAL:
            norm = {"simba_v2": "scaler", "bro": "norm1"}.get(self.trunk.kind)
            rows = [
                (f"{b}.fc1", (f"{b}.fc2",), () if norm is None else (f"{b}.{norm}",))
                for b in (f"blocks.{i}" for i in range(self.trunk.blocks))
            ]
        else:
            order = self._trunk_order()
            after = [*((name,) for name in order[1:]), self.heads]
            rows = [(layer, readers, ()) for layer, readers in zip(order, after, strict=True)]
        named = self.activation[0]
        return [UnitSpec(*row, nonlinearity=named, replaceable=True) for row in rows]

    def residual_branches(self) -> list[list[str]]:
        """Return the layer whose output each residual block adds; SimbaV2's only move x."""
        last = {"simba": "fc2", "bro": "norm2"}.get(self.trunk.kind)
        return [] if last is None else [[f"blocks.{i}.{last}"] for i in range(self.trunk.blocks)]

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block by the trunk's initializer, on the CPU.

        ``mlp``: torch's own initializers, as Stable-Baselines3. ``simba``: weights inside residual
        blocks He-normal, cut at two standard deviations; other weights orthogonal with gain
        1; biases 0; norms 1 and 0. ``simba_v2``: orthogonal, then rows of length 1. ``bro`` and
        ``init: orthogonal``: all weights are orthogonal with gain √2, but for the head `log_std`
        with gain 1; biases 0 (Nikishin et al. 2022).
        """
        kind = self.trunk.kind
        if block.kind == "norm":
            return torch_default(block, generator)
        if kind == "simba_v2":
            drawn = orthogonal(block, generator, 1.0)
            return drawn if block.role == "bias" else unit(drawn)
        if self.trunk.init == "orthogonal" or kind == "bro":
            return orthogonal(block, generator, 1.0 if block.path == "log_std" else math.sqrt(2))
        if kind == "mlp":
            return torch_default(block, generator)
        if kind == "drq":
            return orthogonal(block, generator, math.sqrt(2) if block.kind == "conv" else 1.0)
        if block.role != "bias" and block.path.startswith("blocks."):
            value = torch.zeros(block.view.shape)
            std = math.sqrt(2 / block.spec.fan_in) / CUT_NORMAL_STD
            return nn.init.trunc_normal_(value, 0, std, -2 * std, 2 * std, generator=generator)
        return orthogonal(block, generator, 1.0)

    def _hidden(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return what the heads read; of one member or all."""
        kind, nonlinearity = self.trunk.kind, self.activation[1]
        if kind not in RESIDUAL:
            for name in self._trunk_order():
                layer = self.get_submodule(name)
                x = activated(layer, computed(layer, x, member), nonlinearity)
            return x
        x = computed(self.input, with_shift(x) if kind == "simba_v2" else x, member)
        if kind == "simba_v2":
            x = unit(computed(self.scaler, x, member))
        elif kind == "bro":
            x = nonlinearity(computed(self.norm, x, member))
        for block in self.blocks:
            x = block(x, member)
        return computed(self.norm, x, member) if kind == "simba" else x
