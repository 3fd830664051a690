"""How values are distributed: densities of a few numbers, which a run can log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register
from rlplast.metrics.curvature import Spectrum, hessian_spectrum

__all__ = ["Density", "activation_histogram", "hessian_density", "smoothed"]

SPECTRUM_CELLS = 200
WIDTH = 0.005  # of the Gaussians, over the range of the nodes: about one cell
MARGIN = 6  # of those widths on either side, beyond which they have less than 1e-8


@dataclass(frozen=True)
class Density:
    """A density over cells of equal width.

    Attributes:
        low: where the first cell begins, 0-d float64.
        high: where the last cell ends, 0-d float64.
        values: the density in each cell, shape (cells,), float64. Times the width they sum to 1.
    """

    low: Tensor
    high: Tensor
    values: Tensor

    def logged(self) -> dict[str, Tensor]:
        """Return what a run logs: ``low``, ``high``, and the values by number of the cell."""
        cells = {str(number): value for number, value in enumerate(self.values)}
        return {"low": self.low, "high": self.high} | cells


@register("metrics", "activation_histogram", source="Min 2020, Persistent Neurons, figure 15")
def activation_histogram(activations: Mapping[str, Tensor], *, cells: int = 50) -> Density:
    """Density of the activations of all layers together, from the smallest to the largest.

    If all are equal, the cells reach from 0.5 below to 0.5 above. If one is not finite, all numbers
    are NaN.
    """
    if not activations:
        raise ConfigError("activation_histogram: there are no activations of a hidden layer")
    values = torch.cat([layer.flatten().double() for layer in activations.values()])
    low, high = values.aminmax()
    half = torch.where(low == high, 0.5, 0.0)
    low, high = low - half, high + half
    width = (high - low) / cells
    place = ((values - low) / width).nan_to_num(0).long().clamp(0, cells - 1)
    counts = torch.bincount(place, minlength=cells)
    finite = values.isfinite().all()
    parts = (low, high, counts / (len(values) * width))
    return Density(*(torch.where(finite, part, torch.nan) for part in parts))


@register(
    "metrics", "hessian_density", source="Ghorbani et al. 2019, stochastic Lanczos quadrature"
)
def hessian_density(
    loss: Tensor, parameters: Sequence[Tensor], probes: int = 10, steps: int = 80, seed: int = 0
) -> Density:
    """Density of the Hessian's eigenvalues, `hessian_spectrum` smoothed; a run logs all of it.

    Arguments, and their values in a run, are those of `hessian_spectrum`.
    """
    return smoothed(hessian_spectrum(loss, parameters, probes, steps, seed))


def smoothed(spectrum: Spectrum) -> Density:
    """Return the density of a spectrum: each node becomes a Gaussian with the node's weight.

    The width of the Gaussians is 0.5% of the range of the nodes (ours), and the cells reach 6 of
    these widths beyond it. If all nodes are equal, it is 0.5% of their size; of zeros, 0.005.
    """
    low, high = spectrum.nodes[0], spectrum.nodes[-1]
    range_ = next((float(size) for size in (high - low, high.abs()) if size > 0), 1.0)
    sigma = WIDTH * range_
    low, high = low - MARGIN * sigma, high + MARGIN * sigma
    numbers = torch.arange(SPECTRUM_CELLS, dtype=torch.float64, device=low.device)
    centres = low + (high - low) * (numbers + 0.5) / SPECTRUM_CELLS
    return Density(low, high, spectrum.density(centres, sigma))
