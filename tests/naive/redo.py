"""Slow twin of ReDo (Sokar et al. 2023), in the order of Dopamine's weight recyclers.

s_i = mean|h_i| / (mean_k mean|h_k| + 1e-9) on a probe batch; units with s_i at or below the
threshold get fresh incoming weights, bias 0, norm entries 1, 0, 0, 1 and outgoing weights 0.
"""

import torch
from torch import Tensor

from .units import Layer, activations_of, chosen, outgoing, redraw_incoming


def scores(h: Tensor) -> list[float]:
    """Mean |h| of each unit (axis 1) over its mean over units."""
    means = []
    for i in range(h.shape[1]):
        entries = activations_of(h, i)
        means.append(sum(abs(entry) for entry in entries) / len(entries))
    layer_mean = sum(means) / len(means)
    return [mean / (layer_mean + 1e-9) for mean in means]


def dormant(h: Tensor, threshold: float) -> list[bool]:
    """s_i <= threshold; with threshold 0, s_i within 1e-8 of 0 (isclose)."""
    if threshold == 0:
        return [abs(score) <= 1e-8 for score in scores(h)]
    return [score <= threshold for score in scores(h)]


@torch.no_grad()
def recycle(
    layers: list[Layer], masks: list[list[bool]], fresh: list[Tensor], overlap: str = "zero"
) -> None:
    """Recycle the units of `masks` in place; `fresh[l]` is a whole draw of layer l's w.

    A weight from a recycled unit into a recycled unit of the next layer is outgoing and
    incoming: `zero` writes all incoming, then all outgoing; `redraw` goes layer by layer, so
    that the later layer's incoming is written last.
    """
    rows = list(zip(layers, masks, fresh, strict=True))
    for together in [rows] if overlap == "zero" else [[row] for row in rows]:
        for layer, mask, draw in together:
            for i in chosen(mask):
                redraw_incoming(layer, i, draw[i])
        for layer, mask, _ in together:
            for i in chosen(mask):
                outgoing(layer, i).zero_()
