"""Layers whose units live, sleep and wake; `rlplast.methods.lifecycle_tick` has the algorithm.

Conv channels, stacked members and attention heads are ours.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.fast.linear import Linear
from rlplast.core.method.install import as_kind
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.network import INSTALLED
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.rng import derive_seed
from rlplast.methods.draws import whole_numbers

__all__ = [
    "LifecycleConv2d",
    "LifecycleLinear",
    "LifecycleMultiheadAttention",
    "LifecycleUnits",
    "Rule",
    "StackedLifecycleLinear",
    "draw_durations",
]

_LIFE, _RECOVERY = 0, 1  # what a draw is for: the first key of its hash


# A `rlplast.methods.lifecycle.Lifecycle`, which imports this file: a layer reads its parameters.
Rule = Any


def draw_durations(rule: Rule, seed: Tensor, revivals: Tensor) -> tuple[Tensor, Tensor]:
    """Draw L_max and R_max of every unit for the life after so many revivals, int64.

    `seed` is () or (members,), `revivals` (units,) or (members, units), as is each result.
    """
    seeds = seed.unsqueeze(-1)
    units = torch.arange(revivals.shape[-1], device=revivals.device)
    return (
        whole_numbers(*rule.life, seeds, _LIFE, revivals, units),
        whole_numbers(*rule.recovery, seeds, _RECOVERY, revivals, units),
    )


class LifecycleUnits(nn.Module):
    """What the lifecycle layers share: buffers per unit, a mask, a tick.

    All buffers are in the state dict. `scale` and the memories are float32 at least: in half
    precision a scale would stop growing.
    """

    # Per unit, of shape `unit_shape`, int64 but for the scale:
    active: Tensor  # 1 where it is awake, 0 where it sleeps
    scale: Tensor  # its share of full strength while it warms up, in (0, 1]
    life: Tensor  # ticks left of its life
    recovery: Tensor  # ticks left of its sleep
    life_max: Tensor  # ticks of a whole life
    recovery_max: Tensor  # ticks of a whole sleep
    revivals: Tensor  # how often it has woken up
    seed: Tensor  # what draws come from; one per member of a stacked layer
    memories: dict[str, str]  # parameter → the buffer that remembers its rows
    follows: bool  # whether it is a follower's, which never ticks; the `rlplast.Network` sets it
    # Of a class: attributes with the shape of the buffers, and parameters whose rows are of units.
    sizes: tuple[str, ...]
    remembered: tuple[str, ...] = ("weight", "bias")

    @classmethod
    def of(cls, layer: nn.Module, lifecycle: Rule, seed: int) -> Self:
        """Return a layer with the parameters of `layer` themselves, all units awake."""
        new = as_kind(layer, cls)
        new._begin(lifecycle, seed)
        return new

    def _begin(self, lifecycle: Rule, seed: int) -> None:
        self.lifecycle, self.follows = lifecycle, False
        vars(self)[INSTALLED] = [lifecycle]  # also of a layer that nobody installed
        names = [n for n in self.remembered if self._parameters.get(n) is not None]
        self.memories = {name: f"memory_{name}" for name in names}
        first, shape = self.get_parameter(names[0]), self.unit_shape()
        wide = torch.promote_types(first.dtype, torch.float32)

        def counts(value: int) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=first.device)

        self.register_buffer("active", counts(1))
        self.register_buffer("scale", torch.ones(shape, dtype=wide, device=first.device))
        members: int | None = getattr(self, "members", None)
        seeds = seed if members is None else [derive_seed(seed, m) for m in range(members)]
        self.register_buffer("seed", torch.tensor(seeds, dtype=torch.int64, device=first.device))
        self.register_buffer("revivals", counts(0))
        life, recovery = draw_durations(lifecycle, self.seed, self.revivals)
        self.register_buffer("life_max", life)
        self.register_buffer("recovery_max", recovery)
        self.register_buffer("life", life.clone())
        self.register_buffer("recovery", counts(0))
        for name, memory in self.memories.items():
            value = self.get_parameter(name).detach()
            self.register_buffer(memory, value.to(wide, copy=True))

    @property
    def followed_buffers(self) -> tuple[str, ...]:
        """Buffers that followers share: the mask, if they compute with it."""
        return ("active", "scale") if self.lifecycle.target_mask == "online" else ()

    def unit_shape(self) -> tuple[int, ...]:
        """Return the shape of the buffers per unit."""
        return tuple(getattr(self, name) for name in self.sizes)

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a view of a parameter, or of a tensor laid out like it, with rows in dim 0."""
        return tensor.detach()

    def spread(self, per_unit: Tensor, parameter: str) -> Tensor:
        """Return a value per row of a parameter from a value per unit."""
        return per_unit.flatten()

    def fans(self, parameter: str) -> tuple[int, int]:
        """Return inputs per output unit and outputs per input unit of a weight."""
        d_out, d_in = self.get_parameter(parameter).shape[-2:]
        return d_in, d_out

    def mask(self) -> Tensor | None:
        """Return d = active · scale, or None where the layer computes unmasked."""
        rule = self.lifecycle
        unmasked_target = self.follows and rule.target_mask == "none"
        if unmasked_target or not (self.training or rule.eval_mask):
            return None
        return self.active * self.scale

    def _masked(self, y: Tensor, dims_after: int) -> Tensor:
        d = self.mask()
        return y if d is None else y * d.to(y.dtype)[(..., *(None,) * dims_after)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {n: b for n, b in self._buffers.items() if b is not None}
        super()._apply(fn, recurse)
        for name, old in before.items():
            now = self._buffers[name]
            if now is not None and now.dtype in (torch.bfloat16, torch.float16):
                self._buffers[name] = old.to(now.device)
        return self


class LifecycleLinear(LifecycleUnits, Linear):
    """A linear layer whose outputs live and sleep: y = d ⊙ (Wx + b)."""

    sizes = ("out_features",)

    def forward(self, input: Tensor) -> Tensor:
        """Return d ⊙ (Wx + b), shape (..., d_out)."""
        return self._masked(super().forward(input), 0)


class LifecycleConv2d(LifecycleUnits, nn.Conv2d):
    """A convolution whose output channels live and sleep."""

    sizes = ("out_channels",)

    def fans(self, parameter: str) -> tuple[int, int]:
        """Return the fans of a channel, kernel included."""
        area = self.weight[0, 0].numel()
        return self.weight.shape[1] * area, self.out_channels // self.groups * area

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution with every channel times its d."""
        return self._masked(super().forward(input), 2)


class StackedLifecycleLinear(LifecycleUnits, StackedLinear):
    """The members of an ensemble, each with units and draws of its own."""

    sizes = ("members", "d_out")

    def rows(self, tensor: Tensor) -> Tensor:
        """Return (members · d_out, ...)."""
        return tensor.detach().view(self.members * self.d_out, *tensor.shape[2:])

    def block_specs(self) -> list[BlockSpec]:
        """Return the Blocks of each member, buffers included."""
        return [
            *super().block_specs(),
            *(
                BlockSpec(name, "buffer", "lifecycle", member=i, index=(i,))
                for i in range(self.members)
                for name in self._buffers
            ),
        ]

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return every member's output, masked, shape (members, batch, d_out)."""
        y = super().forward(x)
        d = self.mask()
        return y if d is None else y * d.to(y.dtype).unsqueeze(1)


class LifecycleMultiheadAttention(LifecycleUnits, nn.MultiheadAttention):
    """Attention whose heads live and sleep: each head's output times its d, before out_proj.

    The rows of a head in the query, key and value projections belong to it.
    """

    sizes = ("num_heads",)
    # Of the projections, packed or separate; the order is a key of draws.
    remembered = ("in_proj_weight", *(f"{p}_proj_weight" for p in "qkv"), "in_proj_bias")

    def spread(self, per_unit: Tensor, parameter: str) -> Tensor:
        """Repeat a head's value for its rows, in each of query, key and value."""
        parts = self.get_parameter(parameter).shape[0] // self.embed_dim
        return per_unit.repeat_interleave(self.head_dim).repeat(parts)

    def fans(self, parameter: str) -> tuple[int, int]:
        """Return the fans of one projection."""
        return self.get_parameter(parameter).shape[1], self.embed_dim

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `torch.nn.MultiheadAttention` returns, heads masked."""
        swap = self.batch_first and query.ndim == 3
        if swap:  # equal inputs stay one tensor: torch then projects them at once
            given = {id(t): t.transpose(0, 1) for t in (query, key, value)}
            query, key, value = (given[id(t)] for t in (query, key, value))
        d = self.mask()
        out_weight = self.out_proj.weight
        if d is not None:
            out_weight = out_weight * d.to(out_weight.dtype).repeat_interleave(self.head_dim)
        separate = not self._qkv_same_embed_dim
        y, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            out_weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=separate,
            q_proj_weight=self.q_proj_weight if separate else None,
            k_proj_weight=self.k_proj_weight if separate else None,
            v_proj_weight=self.v_proj_weight if separate else None,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (y.transpose(0, 1) if swap else y), weights
