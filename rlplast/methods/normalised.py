"""Layers whose output is normalised before the nonlinearity."""

from typing import Any

from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.fast.linear import Linear
from rlplast.core.method.install import as_kind, check_kind, hidden_layers, kind_of, put
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear

__all__ = ["normalise"]


class _Normalized(nn.Module):
    """A layer whose output is normalised before the nonlinearity."""

    norm: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class NormalizedLinear(_Normalized, Linear):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A linear layer followed by LayerNorm over its outputs."""


class NormalizedConv2d(_Normalized, nn.Conv2d):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A conv followed by LayerNorm over channels, height and width; scale and shift per channel."""


class NormalizedStackedLinear(_Normalized, StackedLinear):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The members of an ensemble, each followed by LayerNorm over its outputs."""


_SWAPS: dict[type[nn.Module], type[Any]] = {
    nn.Linear: NormalizedLinear,
    nn.Conv2d: NormalizedConv2d,
    StackedLinear: NormalizedStackedLinear,
}


def normalise(model: nn.Module, method: str, *, affine: bool, eps: float, bias: bool) -> list[str]:
    """Normalise every layer with hidden units in place; return their paths.

    Layers that a norm follows already are left alone. `bias` says whether the others keep theirs.

    Raises:
        NothingToEdit: if there is none.
        ConfigError: for a layer that is normalised like this already, or of another class.
    """
    groups = hidden_layers(model, method)
    layers = {p: model.get_submodule(p) for p, units in groups.items() if not units[0].norms}
    for path in groups:
        if isinstance(model.get_submodule(path), _Normalized):
            raise ConfigError(f"{method}: {path} is normalised already")
    for path, layer in layers.items():
        check_kind(layer, _SWAPS, f"{method}: {path}")
    for layer in layers.values():
        new = as_kind(layer, _SWAPS[kind_of(layer)])
        if not bias:
            new._parameters["bias"] = None
        new.norm = _norm(layer, affine, eps)
        put(model, layer, new)
    return list(layers)


def _norm(layer: Any, affine: bool, eps: float) -> nn.Module:
    device, dtype = layer.weight.device, layer.weight.dtype
    if isinstance(layer, nn.Conv2d):
        norm = nn.GroupNorm(1, layer.out_channels, eps, affine)
    elif isinstance(layer, StackedLinear) and affine:
        norm = StackedLayerNorm(layer.members, layer.d_out, eps)
    else:
        norm = nn.LayerNorm(layer.weight.shape[-2], eps, affine)
    return norm.to(device, dtype).requires_grad_(layer.weight.requires_grad)
