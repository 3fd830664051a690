"""SAC's encoder of pictures: convolutions that the critics share, and random shifts.

Source: DrQ (Kostrikov et al. 2021, arXiv:2004.13649) and DrQ-v2 (Yarats et al. 2022,
arXiv:2107.09645). The encoder is a part of the critic, and only its loss trains it.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rlplast.agents.networks import ACTIVATIONS, Convs, cast_input, conv_layers
from rlplast.core.network.units import UnitSpec, activated

__all__ = ["DRQ_CONVS", "Encoder", "Projection", "shift"]

DRQ_CONVS: Convs = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
NORM_EPS = 1e-5


class Encoder(nn.Module):
    """Convolutions without padding, each followed by a nonlinearity, of (channels, height, width).

    Raises:
        ConfigError: if the pictures are too small.
    """

    def __init__(
        self,
        shape: Sequence[int],
        convs: Convs,
        activation: str = "relu",
        obs_scale: float = 1 / 255,
    ) -> None:
        super().__init__()
        self.obs_scale = obs_scale
        self.nonlinearity = ACTIVATIONS[activation]
        layers, self.features = conv_layers(shape, convs)  # of one picture
        self.order = [*layers]
        for name, layer in layers.items():
            self.add_module(name, layer)

    def unit_specs_before(self, reader: str) -> list[UnitSpec]:
        """Return the units of each layer; a layer `reader` reads the last one's."""
        paths = [*(f"encoder.{name}" for name in self.order), reader]
        named = self.nonlinearity[0]
        return [
            UnitSpec(layer, (reader,), nonlinearity=named, replaceable=True)
            for layer, reader in pairwise(paths)
        ]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features (batch, features) of pictures in bytes."""
        x = cast_input(obs) * self.obs_scale - 0.5
        for name in self.order:
            layer = self.get_submodule(name)
            x = activated(layer, layer(x), self.nonlinearity[1])
        return x.flatten(1)


class Projection(nn.Module):
    """tanh(LayerNorm(linear(x))): few numbers from many features."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(d_in, d_out), nn.LayerNorm(d_out, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, d_out) of (batch, d_in)."""
        return self.norm(self.linear(x)).tanh()


@torch.no_grad()
def shift(pictures: Tensor, offsets: Tensor, most: int) -> None:
    """Move each picture of a batch, in place, by at most `most` pixels; its edge is repeated (DrQ).

    Args:
        pictures: (batch, channels, height, width).
        offsets: (batch, 2), whole numbers in [0, 2·most], down and right; `most` leaves it.
        most: padding at each edge.
    """
    height, width = pictures.shape[-2:]
    by = offsets - most
    rows = (torch.arange(height, device=by.device) + by[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=by.device) + by[:, 1:]).clamp_(0, width - 1)
    source = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)  # (batch, pixels)
    flat = pictures.flatten(2)
    pictures.copy_(flat.gather(2, source[:, None].expand_as(flat)).view_as(pictures))
