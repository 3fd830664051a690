"""Slow twin of GXD (arXiv:2605.06834): |Σ g·(h − r)| of each unit, one by one."""

from torch import Tensor


def costs(h: Tensor, g: Tensor, reference: Tensor | None = None) -> list[float]:
    """The cost of each unit (axis 1) of activations `h` with gradients `g`; r is 0, or given."""
    found = []
    for i in range(h.shape[1]):
        r = 0.0 if reference is None else reference[i].double()
        found.append(float((g[:, i].double() * (h[:, i].double() - r)).sum().abs()))
    return found
