"""Layers that give their readers two entries per output: cat[f(z), g(z)] on the unit axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.install import hidden_layers, kind_of
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.unit_search import JOINED
from rlplast.core.network.units import ActivationPoint, UnitGroup
from rlplast.core.rng import torch_stream

__all__ = ["Join", "find_joins", "halve", "mark", "widen"]

_KINDS = (nn.Linear, nn.Conv2d, StackedLinear)
_ALLOWED = "allowed are Linear, Conv2d, StackedLinear"
# Names of the sizes of each: outputs, inputs.
_SIZES = ("out_features", "in_features"), ("out_channels", "in_channels"), ("d_out", "d_in")


@dataclass(frozen=True)
class Join:
    """A layer whose readers are to read two entries per output."""

    path: str
    layer: nn.Module
    readers: dict[str, nn.Module]  # by path
    point: ActivationPoint  # where its nonlinearity is
    nonlinearity: str
    dim: int  # of the units: channels, also when flattened, or the last


def find_joins(model: nn.Module, method: str, halves: bool) -> list[Join]:
    """Return the layers with hidden units and a nonlinearity.

    With `halves` their rows are to be halved, else their readers are to be widened.

    Raises:
        NothingToEdit: if there is none.
        ConfigError: for a layer that cannot be resized, naming it.
    """
    joins = [_join(model, path, groups) for path, groups in hidden_layers(model, method).items()]
    joins = [join for join in joins if join.nonlinearity != "linear"]
    if not joins:
        raise NothingToEdit(f"{method} finds no layer with a nonlinearity")
    for join in joins:
        problem = _no_halves(join) if halves else _no_twice(join)
        if problem is not None:
            raise ConfigError(f"{method}: {join.path} {problem}")
    return joins


def _join(model: nn.Module, path: str, groups: Sequence[UnitGroup]) -> Join:
    first, layer = groups[0], model.get_submodule(path)
    readers = dict.fromkeys(part.block.path for group in groups for part in group.outgoing)
    return Join(
        path,
        layer,
        {reader: model.get_submodule(reader) for reader in readers},
        first.point,  # pyright: ignore[reportArgumentType]
        first.nonlinearity,
        1 if first.weight.block.kind == "conv" else -1,
    )


def _no_halves(join: Join) -> str | None:
    """Say why a layer cannot have half its rows; None if it can."""
    layer: Any = join.layer
    if kind_of(layer) not in _KINDS:
        return f"is a {type(layer).__name__}: {_ALLOWED}"
    rows = getattr(layer, _sizes(layer)[0])
    if rows % 2 or getattr(layer, "groups", 1) != 1:
        return f"has {rows} outputs, which cannot be halved (an odd number, or a grouped conv)"
    if join.point.norms:
        return f"is followed by the norm {join.point.norms[0]}, which would not fit half of it"
    return None


def _no_twice(join: Join) -> str | None:
    """Say why the layers that read a layer cannot read twice as much; None if they can."""
    norms = join.point.norms
    before = norms.index(join.point.path) + 1 if join.point.path in norms else 0
    if norms[before:]:
        return f"is followed by the norm {norms[before]} after its nonlinearity"
    for path, reader in join.readers.items():
        if not isinstance(reader, _KINDS) or hasattr(reader, "memories"):
            return f"is read by {path}, a {type(reader).__name__}: {_ALLOWED}"
    return None


def _sizes(layer: nn.Module) -> tuple[str, str]:
    return next(s for kind, s in zip(_KINDS, _SIZES, strict=True) if isinstance(layer, kind))


def mark(join: Join, method: str) -> None:
    """Note that no unit of a layer has columns of its own any more."""
    vars(join.layer)[JOINED] = method


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
