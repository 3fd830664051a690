"""Hidden units for the slow twins: which entries belong to a unit, and how they are recycled.

Rules shared by ReDo (Sokar et al. 2023), continual backprop (Dohare et al. 2024) and
self-normalized resets (Farias & Jozefiak 2024). A unit is a row of a linear layer or an output
channel of a convolution. Units are written one by one; nothing is batched.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    var: Tensor | None = None
    b_next: Tensor | None = None


def width(layer: Layer) -> int:
    """The number of units."""
    return layer.w.shape[0]


def outgoing(layer: Layer, i: int) -> Tensor:
    """A view of the weights that read unit i: (d_out, S), or (C_out, 1, kh, kw)."""
    columns = layer.w_next.shape[1] // width(layer)
    return layer.w_next.detach()[:, i * columns : (i + 1) * columns]


@torch.no_grad()
def redraw_incoming(layer: Layer, i: int, row: Tensor) -> None:
    """Weights into unit i from `row` (the shape of w[i]), bias 0, norm entries 1, 0, 0, 1."""
    layer.w[i] = row
    if layer.b is not None:
        layer.b[i] = 0
    for name, start in NORM_RESET.items():
        tensor = getattr(layer, name)
        if tensor is not None:
            tensor[i] = start


def activations_of(h: Tensor, i: int) -> list[float]:
    """Every activation of unit i, over the batch and what follows axis 1."""
    return [float(entry) for entry in h[:, i].detach().double().reshape(-1)]


def chosen(mask: list[bool]) -> list[int]:
    """The units of a mask, in order."""
    return [i for i, taken in enumerate(mask) if taken]
