"""Parts of SimbaV2's networks: features and weights on a sphere, and factors that are learnt.

Every linear layer has rows of length 1, which `project` restores after each update, and no bias.
Features are scaled to length 1 wherever a residual block begins and ends.

Source: Lee et al. 2025 (SimbaV2, arXiv:2502.15280), Section 4; values of its code,
`simbaV2_layer.py` and `simbaV2.yaml`.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.stacked import StackedLinear, computed
from rlplast.core.network.units import Step, activated

__all__ = [
    "SCALED_HEAD",
    "LerpBlock",
    "ScaledHead",
    "Scaler",
    "linear",
    "project",
    "scale_of",
    "unit",
    "unit_weights",
    "with_shift",
]

SHIFT = 3.0  # the constant beside the observation, which keeps its length
SHORTEST = 1e-8  # of a vector that is scaled to length 1
SCALED_HEAD = ("fc1", "scaler", "fc2")  # the layers of a `ScaledHead`
FLOOR = 1e-8  # added to hidden activations, so that they are never all 0


def unit(x: Tensor) -> Tensor:
    """Return x/‖x‖ along the last dimension, in at least float32; 0 stays 0."""
    wide = x if x.dtype == torch.float64 else x.float()
    return wide / torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=SHORTEST)


def with_shift(x: Tensor) -> Tensor:
    """Return [x, 3], scaled to length 1."""
    return unit(torch.cat([x, torch.full_like(x[..., :1], SHIFT)], dim=-1))


def scale_of(width: int) -> float:
    """Return what factors of `width` features begin with, as parameters and as they act."""
    return math.sqrt(2 / width)


class Scaler(nn.Module):
    """A learnt factor of each feature: x · s · init/scale, where s begins with `scale`.

    Adam moves each s by about the learning rate, so `scale` says how fast the factor changes.
    Hooks see it as the scale of a norm layer.
    """

    def __init__(self, dim: int, init: float, scale: float, members: int | None = None) -> None:
        super().__init__()
        shape = (dim,) if members is None else (members, dim)
        self.members, self.start, self.factor = members, scale, init / scale
        self.weight = nn.Parameter(torch.full(shape, scale))

    def block_specs(self) -> list[BlockSpec]:
        """Return one scale Block, or one per member."""
        scale = BlockSpec("weight", "scale", "norm", start=self.start)
        if self.members is None:
            return [scale]
        return [replace(scale, member=i, index=(i,)) for i in range(self.members)]

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return the scaled features, (…, dim), or (members, batch, dim), or those of a member."""
        if member is not None:
            scale = self.weight[member]
        else:
            scale = self.weight if self.members is None else self.weight.unsqueeze(1)
        return x * (scale * self.factor)


def linear(members: int | None, d_in: int, d_out: int, bias: bool = True) -> nn.Module:
    """Return a linear layer, or one per member."""
    if members is None:
        return nn.Linear(d_in, d_out, bias)
    return StackedLinear(members, d_in, d_out, bias)


class LerpBlock(nn.Module):
    """unit(x + α · (unit(fc2(f(s · fc1(x)))) − x)), with factors s and α that are learnt.

    Of `blocks` such blocks, of `width` features with `inner` units inside, α begins with
    1/(blocks + 1).
    """

    def __init__(
        self, width: int, inner: int, blocks: int, nonlinearity: Step, members: int | None
    ) -> None:
        super().__init__()
        begin = scale_of(inner)  # the code's √(2/width)/√4, since inner is 4 · width
        self.fc1 = linear(members, width, inner, bias=False)
        self.fc2 = linear(members, inner, width, bias=False)
        self.scaler = Scaler(inner, begin, begin, members)
        self.alpha = Scaler(width, 1 / (blocks + 1), 1 / math.sqrt(width), members)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return the sum."""
        z = computed(self.scaler, computed(self.fc1, x, member), member)
        inner = activated(self.fc1, z, self.nonlinearity)
        moved = unit(computed(self.fc2, inner + FLOOR, member)) - x
        return unit(x + computed(self.alpha, moved, member))


class ScaledHead(nn.Module):
    """fc2(s · fc1(x)) with a bias at the end, and factors s that begin with 1."""

    def __init__(self, width: int, d_out: int, members: int | None) -> None:
        super().__init__()
        self.fc1 = linear(members, width, width, bias=False)
        self.scaler = Scaler(width, 1.0, 1.0, members)
        self.fc2 = linear(members, width, d_out)
        vars(self.fc2)["is_head"] = True

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Return the outputs."""
        x = computed(self.scaler, computed(self.fc1, x, member), member)
        return computed(self.fc2, x, member)


def unit_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of linear layers that are trained."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear | StackedLinear)]
    return [layer.weight for layer in layers if layer.weight.requires_grad]


@torch.no_grad()
def project(weights: Iterable[Tensor]) -> None:
    """Scale each row of each weight to length 1, in place."""
    for weight in weights:
        weight.copy_(unit(weight))
