"""Layers that give their readers two entries per output: cat[f(z), g(z)] on the unit axis."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.install import kind_of
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.units import UnitGroup
from rlplast.core.rng import torch_stream

__all__ = ["axis_of", "check_halves", "check_readers", "halve", "readers_of", "widen"]

# Names of the numbers of outputs and inputs.
_SIZES: dict[type[nn.Module], tuple[str, str]] = {
    nn.Linear: ("out_features", "in_features"),
    nn.Conv2d: ("out_channels", "in_channels"),
    StackedLinear: ("d_out", "d_in"),
}
_ALLOWED = "allowed are Linear, Conv2d, StackedLinear"


def axis_of(group: UnitGroup) -> int:
    """Return where a layer's units are in its output: channels, also when flattened, or last."""
    return 1 if group.weight.block.kind == "conv" else -1


def readers_of(model: nn.Module, group: UnitGroup) -> dict[str, nn.Module]:
    """Return the layers that read units, by path."""
    return {p.block.path: model.get_submodule(p.block.path) for p in group.outgoing}


def check_halves(model: nn.Module, groups: Mapping[str, UnitGroup], method: str) -> None:
    """Raise a `ConfigError` for a layer that cannot have half its rows; it names layer and method.

    `groups` has layers with a nonlinearity, as `rlplast.methods.replacing.nonlinear` returns them.
    """
    for path, group in groups.items():
        layer, norms = model.get_submodule(path), group.point.norms if group.point else ()
        if kind_of(layer) not in _SIZES:
            problem = f"is a {type(layer).__name__}: {_ALLOWED}"
        elif group.size % 2 or getattr(layer, "groups", 1) != 1:
            problem = f"has {group.size} outputs, which cannot be halved (an odd number, or groups)"
        elif norms:
            problem = f"is followed by the norm {norms[0]}, which would not fit half of it"
        else:
            continue
        raise ConfigError(f"{method}: {path} {problem}")


def check_readers(model: nn.Module, groups: Mapping[str, UnitGroup], method: str) -> None:
    """Raise a `ConfigError` for a layer whose readers cannot get twice the inputs."""
    for path, group in groups.items():
        norms, anchor = (group.point.norms, group.point.path) if group.point else ((), "")
        after = norms[norms.index(anchor) + 1 :] if anchor in norms else norms
        if after:
            raise ConfigError(
                f"{method}: {path} is followed by the norm {after[0]} after its nonlinearity"
            )
        for name, reader in readers_of(model, group).items():
            if not isinstance(reader, tuple(_SIZES)) or hasattr(reader, "memories"):
                raise ConfigError(
                    f"{method}: {path} is read by {name}, a {type(reader).__name__}: {_ALLOWED}"
                )


def _sizes(layer: nn.Module) -> tuple[str, str]:
    return next(names for kind, names in _SIZES.items() if isinstance(layer, kind))


def halve(layer: Any) -> None:
    """Keep the first half of a layer's rows, weight and bias."""
    size, axis = _sizes(layer)[0], int(isinstance(layer, StackedLinear))
    for name, p in dict(layer._parameters).items():
        if p is not None:
            half = p.detach().narrow(axis, 0, p.shape[axis] // 2).clone()
            layer._parameters[name] = nn.Parameter(half, p.requires_grad)
    setattr(layer, size, getattr(layer, size) // 2)


def widen(layer: Any, seed: int) -> None:
    """Give a layer twice the inputs, with a weight drawn by torch's initializer for its kind."""
    size, old = _sizes(layer)[1], layer.weight
    axis = 2 if isinstance(layer, StackedLinear) else 1
    shape = [n * 2 if i == axis else n for i, n in enumerate(old.shape)]
    bound = 1 / math.sqrt(math.prod(shape[axis:]))
    new = torch.empty(shape).uniform_(-bound, bound, generator=torch_stream(seed, "widen"))
    layer._parameters["weight"] = nn.Parameter(_like(new.to(old), old), old.requires_grad)
    setattr(layer, size, 2 * getattr(layer, size))


def _like(new: Tensor, old: Tensor) -> Tensor:
    """Lay a conv's weight out in memory as the old one."""
    last = torch.channels_last
    layout = old.ndim == 4 and old.is_contiguous(memory_format=last) and not old.is_contiguous()
    return new.contiguous(memory_format=last) if layout else new
