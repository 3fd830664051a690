"""Stacked layers: the members of an ensemble in one batched computation.

Source: twin critics of SAC (Haarnoja et al. 2018) as one network; as torch.func.stack_module_state.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.fast.linear import affine, build
from rlplast.core.network.blocks import BlockSpec

__all__ = ["StackedLayerNorm", "StackedLinear", "computed"]


def computed(layer: Any, x: Tensor, member: int | None) -> Tensor:
    """Return a layer's output, or that of one member of a stacked layer."""
    return layer(x) if member is None else layer(x, member)


class StackedLinear(nn.Module):
    """Several linear layers of one shape, computed together; hooks see a Block per member.

    Attributes:
        weight: shape (members, d_out, d_in).
        bias: shape (members, d_out), or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, members: int, d_in: int, d_out: int, bias: bool = True) -> None:
        super().__init__()
        build()
        self.members, self.d_in, self.d_out = members, d_in, d_out
        bound = 1 / math.sqrt(d_in)  # as of torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, d_out, d_in).uniform_(-bound, bound))
        start = torch.empty(members, d_out).uniform_(-bound, bound) if bias else None
        self.bias = None if start is None else nn.Parameter(start)

    def block_specs(self) -> list[BlockSpec]:
        """Return one weight and one bias Block per member, with the fans of the member."""
        return [
            BlockSpec(
                role, role, "linear", member=i, index=(i,), fan_in=self.d_in, fan_out=self.d_out
            )
            for i in range(self.members)
            for role in ("weight", "bias")
        ]

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return (members, batch, d_out), of (members, batch, d_in) or (batch, d_in) for all.

        Of one member it is (batch, d_out), of (batch, d_in).
        """
        if member is not None:
            return affine(x, self.weight[member], None if self.bias is None else self.bias[member])
        return self.affine(x.expand(self.members, *x.shape[-2:]), self.weight)

    def affine(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x Wᵀ + b of every member, of (members, batch, d_in), for a weight in its place."""
        return affine(x, weight, self.bias)


class StackedLayerNorm(nn.Module):
    """Several layer norms over the last dimension, one per member (Ba et al. 2016).

    Attributes:
        weight: scales, shape (members, dim).
        bias: shifts, shape (members, dim).
    """

    def __init__(self, members: int, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.members, self.dim, self.eps = members, dim, eps
        self.weight = nn.Parameter(torch.ones(members, dim))
        self.bias = nn.Parameter(torch.zeros(members, dim))

    def block_specs(self) -> list[BlockSpec]:
        """Return one scale and one shift Block per member."""
        return [
            BlockSpec(tensor, role, "norm", member=i, index=(i,))
            for i in range(self.members)
            for tensor, role in (("weight", "scale"), ("bias", "shift"))
        ]

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return the input, (members, batch, dim), normalised, scaled and shifted, in its own type.

        Half precision is widened to float32 first and rounded once, at the end. Of one member the
        input is float32 (batch, dim).
        """
        if member is not None:
            return F.layer_norm(x, (self.dim,), self.weight[member], self.bias[member], self.eps)
        wide = x if x.dtype == torch.float64 else x.float()
        normed = F.layer_norm(wide, (self.dim,), eps=self.eps)
        return torch.addcmul(self.bias[:, None], normed, self.weight[:, None]).to(x.dtype)
