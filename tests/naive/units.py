"""Hidden units for the slow twins: which entries belong to a unit, and how they are recycled.

Rules shared by ReDo (Sokar et al. 2023), continual backprop (Dohare et al. 2024) and
self-normalized resets (Farias & Jozefiak 2024). A unit is a row of a linear layer or an output
channel of a convolution. Its entries are named one by one; nothing is batched.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Entry = tuple[str, tuple[int, ...]]  # a field of Layer, and an index into that tensor
NORM_RESET = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "var": 1.0}


@dataclass
class Layer:
    """One group of hidden units; the tensors may be shared with other layers.

    `w` is (N, d_in) or (N, C, kh, kw), row i of unit i. `w_next` is (d_out, N * S) with unit i
    owning columns i * S to (i + 1) * S - 1 (torch's flatten), or (C_out, N, kh, kw). The norm
    fields have one entry per unit. A residual block is one such layer; the members of stacked
    networks are lists of layers of their own.
    """

    w: Tensor
    b: Tensor | None
    w_next: Tensor
    next_is_conv: bool
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    var: Tensor | None = None
    b_next: Tensor | None = None


def width(layer: Layer) -> int:
    """The number of units."""
    return layer.w.shape[0]


def columns(layer: Layer, i: int) -> list[int]:
    """The inputs of the next linear layer that unit i feeds."""
    spatial, rest = divmod(layer.w_next.shape[1], width(layer))
    if rest:
        raise ValueError(f"{layer.w_next.shape[1]} columns for {width(layer)} units")
    return [i * spatial + place for place in range(spatial)]


def incoming(layer: Layer, i: int) -> Iterator[Entry]:
    """The weights into unit i, and its bias."""
    for index in np.ndindex(*layer.w.shape[1:]):
        yield "w", (i, *index)
    if layer.b is not None:
        yield "b", (i,)


def norm_entries(layer: Layer, i: int) -> Iterator[Entry]:
    """The scale, shift and running statistics of unit i."""
    for name in NORM_RESET:
        if getattr(layer, name) is not None:
            yield name, (i,)


def outgoing(layer: Layer, i: int) -> Iterator[Entry]:
    """The weights that read unit i."""
    for out in range(layer.w_next.shape[0]):
        if layer.next_is_conv:
            for place in np.ndindex(*layer.w_next.shape[2:]):
                yield "w_next", (out, i, *place)
        else:
            for column in columns(layer, i):
                yield "w_next", (out, column)


def value(layer: Layer, entry: Entry) -> float:
    """The entry as a Python float."""
    name, index = entry
    return float(getattr(layer, name).detach()[index])


@torch.no_grad()
def assign(layer: Layer, entry: Entry, new: float) -> None:
    """Write one entry in place."""
    name, index = entry
    getattr(layer, name)[index] = new


def redraw_incoming(layer: Layer, i: int, row: Tensor) -> None:
    """Weights into unit i from `row` (the shape of w[i]), bias 0, norm entries 1, 0, 0, 1."""
    if row.shape != layer.w.shape[1:]:
        raise ValueError(f"a row of shape {tuple(row.shape)} for {tuple(layer.w.shape)}")
    for name, index in incoming(layer, i):
        assign(layer, (name, index), float(row.detach()[index[1:]]) if name == "w" else 0.0)
    for name, index in norm_entries(layer, i):
        assign(layer, (name, index), NORM_RESET[name])


def zero_outgoing(layer: Layer, i: int) -> None:
    """Zero the weights that read unit i."""
    for entry in outgoing(layer, i):
        assign(layer, entry, 0.0)


def activations_of(h: Tensor, i: int) -> list[float]:
    """Every activation of unit i, over the batch and what follows axis 1."""
    return [float(entry) for entry in h[:, i].detach().double().reshape(-1)]


def chosen(mask: list[bool]) -> list[int]:
    """The units of a mask, in order."""
    return [i for i, taken in enumerate(mask) if taken]
