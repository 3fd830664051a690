"""Other nonlinearities in hidden layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, method
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.units import UnitGroup
from rlplast.core.validation import Share
from rlplast.methods.replacing import replace_nonlinearity, replaceable
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Activation", "PReLU", "Rational", "SmoothLeaky"]

Kind = Literal["leaky_relu", "smooth_leaky", "elu", "prelu", "rational"]
ALPHAS = {"leaky_relu": 0.01, "smooth_leaky": 0.1, "elu": 1.0, "prelu": 0.25}
SHARPNESS = 5 / 3  # c/p of Smooth-Leaky
# Nearest to leaky ReLU with slope 0.01 on [−3, 3] by least squares: 0.034 away at most.
NUMERATOR = (0.033563, 0.505, 1.653176, 2.009367, 0.931452, 0.152326)
DENOMINATOR = (0.0, 3.978945, 0.0, 0.301635)


class SmoothLeaky(nn.Module):
    """αx + (1 − α)·x·sigmoid(5x/3): leaky ReLU without a kink (arXiv:2509.22562)."""

    acts_alone = True

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the nonlinearity of each entry."""
        return x * (self.alpha + (1 - self.alpha) * torch.sigmoid(SHARPNESS * x))


class _Trained(nn.Module):
    """A nonlinearity with parameters, each with a row per member of a stacked layer."""

    acts_alone = True
    members: int

    def block_specs(self) -> list[BlockSpec]:
        if not self.members:
            return [BlockSpec(name, "other", "other") for name in self._parameters]
        return [
            BlockSpec(name, "other", "other", member=i, index=(i,))
            for i in range(self.members)
            for name in self._parameters
        ]


class Rational(_Trained):
    """Σ aⱼxʲ / (1 + |Σ bₖxᵏ|), j = 0…5, k = 1…4, whose coefficients train: a safe Padé unit.

    Source: Molina et al. 2020; Delfosse et al. 2024.

    Attributes:
        numerator: a, (6,), or (members, 6).
        denominator: b, (4,), or (members, 4).

    Args:
        like: a layer's weight, for device and precision.
        members: of a stacked layer, whose outputs are (members, …); 0 for others.
    """

    starts: ClassVar[Mapping[str, Sequence[float]]] = {
        "numerator": NUMERATOR,
        "denominator": DENOMINATOR,
    }

    def __init__(self, like: Tensor, members: int = 0) -> None:
        super().__init__()
        self.members = members
        for name, start in self.starts.items():
            value = like.new_tensor(start)
            value = value.expand(members, -1).clone() if members else value
            self.register_parameter(name, nn.Parameter(value, like.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        """Return the nonlinearity of each entry, computed in at least float32."""
        wide = at_least_float32(x)
        a, b = (self._spread(name, x.ndim) for name in self.starts)
        above, below = a[-1], b[-1]
        for coefficient in reversed(a[:-1]):
            above = above * wide + coefficient
        for coefficient in reversed(b[:-1]):
            below = below * wide + coefficient
        return (above / (1 + (below * wide).abs())).to(x.dtype)

    def _spread(self, name: str, ndim: int) -> Sequence[Tensor]:
        """Return the coefficients one by one, each to be multiplied with x."""
        values = at_least_float32(getattr(self, name)).unbind(-1)
        return [v.view(-1, *(1,) * (ndim - 1)) for v in values] if self.members else values


class PReLU(_Trained, nn.PReLU):
    """x above 0, else ax, with a trainable slope a per unit, or per channel of a conv.

    Source: He et al. 2015; Rohani et al. 2025, arXiv:2505.09486. Torch's own takes the second
    dimension for the units'; here they are where the layer's are.

    Attributes:
        weight: a, (units,), or (members, units).

    Args:
        like: the layer's weight, for device and precision.
        group: the layer's units.
        alpha: initial slope.
    """

    per_unit = True

    def __init__(self, like: Tensor, group: UnitGroup, alpha: float) -> None:
        super().__init__(init=alpha)
        self.members = 0 if group.point is None else group.point.members
        self.channels = 0 if group.point is None else group.point.units
        self.starts = {"weight": alpha}
        shape = (self.members, group.size) if self.members else (group.size,)
        self.weight = nn.Parameter(like.new_full(shape, alpha), like.requires_grad)

    def forward(self, input: Tensor) -> Tensor:
        """Return the nonlinearity of each entry, in the precision of the input."""
        x, slope = input, self.weight.to(input.dtype)
        if self.channels:
            pixels = x.shape[1] // self.channels if x.ndim == 2 else 1  # of flattened channels
            slope = slope.repeat_interleave(pixels).view(-1, *(1,) * (x.ndim - 2))
        elif self.members:
            slope = slope.view(self.members, *(1,) * (x.ndim - 2), -1)
        return torch.where(x > 0, x, slope * x)


@method(
    "activation", key="layers", source="Lillo & Cheney 2026; Delfosse et al. 2024; see the card"
)
@dataclass(frozen=True)
class Activation(Method):
    """Replace the nonlinearity of every hidden layer.

    It is a module of its own (``nn.ReLU``), or that of one of this library's networks; others are
    refused by name. Coefficients of ``rational``, one set per layer and member, and slopes of
    ``prelu``, one per unit, train, decay and return to their start with a reset.

    Attributes:
        kind: ``leaky_relu``: αx below 0. ``smooth_leaky``: αx + (1 − α)·x·sigmoid(5x/3). ``elu``:
            α(eˣ − 1) below 0. ``prelu``: ax below 0, a slope per unit that learns. ``rational``: a
            quotient of polynomials of degrees 5 and 4 that learns, and begins as leaky ReLU.
        alpha: α, or the initial a; None: 0.01 of leaky_relu, 0.1 of smooth_leaky, 1 of elu, 0.25 of
            prelu. rational has none.
    """

    kind: Kind = "leaky_relu"
    alpha: Share | None = None

    def __post_init__(self) -> None:
        if self.kind == "rational" and self.alpha is not None:
            raise ConfigError(
                f"activation.alpha = {self.alpha}: rational has no alpha; allowed is null"
            )

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Replace the nonlinearities in place; return the paths of their layers."""
        groups = replaceable(model, self.name)
        for path, group in groups.items():
            new = self._made(model.get_submodule(path), group)
            replace_nonlinearity(model, group, new, self.name)
        return list(groups)

    def _made(self, layer: nn.Module, group: UnitGroup) -> nn.Module:
        if self.kind == "rational":
            return Rational(layer.get_parameter("weight"), getattr(layer, "members", 0))
        alpha = ALPHAS[self.kind] if self.alpha is None else self.alpha
        if self.kind == "prelu":
            return PReLU(layer.get_parameter("weight"), group, alpha)
        kinds = {"leaky_relu": nn.LeakyReLU, "smooth_leaky": SmoothLeaky, "elu": nn.ELU}
        return kinds[self.kind](alpha)
