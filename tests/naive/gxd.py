"""Slow twin of GXD (arXiv:2605.06834): |Σ g·(h − r)| of each unit, entry by entry."""

from torch import Tensor

from .units import activations_of


def costs(h: Tensor, g: Tensor, reference: Tensor | None = None) -> list[float]:
    """The cost of each unit (axis 1) of activations `h` with gradients `g`; r is 0, or given."""
    found = []
    for i in range(h.shape[1]):
        r = 0.0 if reference is None else float(reference[i])
        pairs = zip(activations_of(h, i), activations_of(g, i), strict=True)
        found.append(abs(sum(slope * (entry - r) for entry, slope in pairs)))
    return found
