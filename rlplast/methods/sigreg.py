"""SIGReg: Saheb et al. 2026 (arXiv:2602.19373), code of its PQN and PPO (IsoGaussian-DRL).

LeJEPA: Balestriero & LeCun 2025; the statistic: Epps & Pulley 1983.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from rlplast.core.method.method import Block, Context, Network, State, method
from rlplast.core.network.units import ActivationPoint
from rlplast.core.validation import Count
from rlplast.methods.draws import normal
from rlplast.methods.features import OutputTerm, Reading, read_by_heads
from rlplast.metrics.ranks import at_least_float32

__all__ = ["SIGReg", "distance_to_normal"]

POINTS, FARTHEST = 8, 5.0  # where characteristic functions are compared, as in the official code


def distance_to_normal(features: Tensor, directions: Tensor) -> Tensor:
    """Return the mean of |φ(t) − exp(−t²/2)|² over directions and 8 points t in [−5, 5].

    φ is the empirical characteristic function of the features along a direction. The result has
    one number per leading index, from 0 to 1.6.

    Args:
        features: (…, samples, width).
        directions: unit vectors, (slices, width).
    """
    t = torch.linspace(-FARTHEST, FARTHEST, POINTS, dtype=features.dtype, device=features.device)
    angles = (features @ directions.mT).unsqueeze(-1) * t  # (…, samples, slices, points)
    real = angles.cos().mean(-3) - (-t.square() / 2).exp()
    return (real.square() + angles.sin().mean(-3).square()).mean((-2, -1))


@method("sigreg", source="Saheb et al. 2026, SIGReg (arXiv:2602.19373); IsoGaussian-DRL")
@dataclass(frozen=True)
class SIGReg(OutputTerm):
    """Pull the last features towards an isotropic Gaussian: sketched, SIGReg.

    coef · mean |φ(t) − exp(−t²/2)|² on a batch of its own, over `slices` random unit directions,
    drawn anew for each update, and 8 points t in [−5, 5]. φ is the empirical characteristic
    function of the features along a direction. Features are what the last hidden layer gives right
    before the nonlinearity (after a norm in between), else, as behind a residual stream, what the
    head reads. All of a conv's pixels are one sample, and each of a transformer's tokens. What
    heads read together counts once. Features are computed in evaluation mode.

    Attributes:
        coef: strength of the term.
        slices: how many directions.
        batch: samples of the batch.
    """

    coef: NonNegativeFloat = 0.2
    slices: Count = 16
    batch: Count = 128

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state: directions are hashes of the seed and the update."""
        self.check_whole(network, blocks)
        self._places(network)
        return {}

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the distance, summed over heads that read apart, and members."""
        points, heads = self._places(context.network)
        hidden = [context.network.module.get_submodule(path) for path in points]
        [batch] = context.batches(1, self.batch)
        given = Reading(context.network.module, hidden, outputs=True)
        read = Reading(given, heads)
        context.outputs(batch, read)
        of = dict(zip(hidden, points.values(), strict=True))
        features = [_samples(z, of[layer].members, of[layer].units) for layer, z in given.found]
        features += [_samples(z, getattr(layer, "members", 0), 0) for layer, z in read.found]
        terms = [
            distance_to_normal(rows, self._directions(context, place, rows)).sum()
            for place, rows in enumerate(features)
        ]
        return self.coef * torch.stack(terms).sum()

    def _places(self, network: Network) -> tuple[dict[str, ActivationPoint], list[nn.Module]]:
        """Return the layers or norms that give features, and the heads that read others."""
        groups = [group for group in network.units().groups if group.point is not None]
        read = read_by_heads(network, groups, self.name)
        points = {g.point.path: g.point for units in read.values() for g in units if g.point}
        return points, [head for head, units in read.items() if not units]

    def _directions(self, context: Context, place: int, features: Tensor) -> Tensor:
        device = features.device
        unit = torch.arange(self.slices, device=device).unsqueeze(1)
        entry = torch.arange(features.shape[-1], device=device)
        keys = context.seed, context.clock.updates, place, unit, entry
        drawn = normal(torch.zeros_like(unit), *keys)
        return (drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)).to(features)


def _samples(features: Tensor, members: int, channels: int) -> Tensor:
    """Return features as (members,) samples, width, in at least float32."""
    wide = at_least_float32(features)
    if channels:
        return wide.flatten(1)
    return wide.flatten(int(members > 0 and wide.ndim > 2), -2)
