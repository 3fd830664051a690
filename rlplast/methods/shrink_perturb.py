"""Shrink and Perturb: Ash & Adams 2020; one-coefficient form of Lee et al. 2024."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, method
from rlplast.core.method.once import plain
from rlplast.core.validation import Share
from rlplast.metrics.ranks import at_least_float32

__all__ = ["ShrinkPerturb", "shrink_perturb"]


@method("shrink_perturb", source="Ash & Adams 2020; Lee et al. 2024, one coefficient")
@dataclass(frozen=True)
class ShrinkPerturb(Method):
    """Move every weight part of the way back to initialisation: (1 − coef)·θ + coef·θ0.

    All trainable tensors are edited; BatchNorm's running statistics only with `running_stats`.

    Attributes:
        coef: share of the initial value in the result.
        init: ``stored`` mixes in θ0, ``fresh`` a new draw from the layer's initializer, ``xavier``
            one from N(0, 2 / (fan_in + fan_out)) for weights and zero else, as in Chung et al.
            2024's code.
        shrink: with `noise`, the original two-coefficient form shrink·θ + noise·fresh;
            replaces `coef`.
        noise: factor of the fresh draw in the two-coefficient form.
        running_stats: whether BatchNorm's running mean and variance are mixed as well.
    """

    coef: Share = 0.8
    init: Literal["stored", "fresh", "xavier"] = "stored"
    shrink: Share | None = None
    noise: NonNegativeFloat | None = None
    running_stats: bool = False

    def __post_init__(self) -> None:
        if (self.shrink is None) != (self.noise is None):
            raise ConfigError("shrink_perturb: shrink and noise are given together or not at all")

    @property
    def uses_initial(self) -> bool:
        """Whether plans read θ0."""
        return self.init == "stored" and self.noise is None

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan the mixture for every trainable Block in scope."""
        generator = context.stream()
        edits: list[Edit] = []
        for block in context.blocks:
            running_stats = block.kind == "norm" and block.view.is_floating_point()
            if block.role == "buffer" and not (self.running_stats and running_stats):
                continue
            if self.init == "xavier":
                start = _xavier(block, generator)
            elif self.init == "fresh" or self.noise is not None:
                start = context.network.fresh(block, generator)
            else:
                start = context.network.initial[block.name]
            now = at_least_float32(block.view)
            if self.shrink is not None and self.noise is not None:
                value = self.shrink * now + self.noise * start.to(now)
            else:
                value = (1 - self.coef) * now + self.coef * start.to(now)
            edits.append(Assign(block, value))
        return edits


def _xavier(block: Block, generator: torch.Generator) -> Tensor:
    """Draw a weight by Glorot's normal initializer; zeros for anything else."""
    drawn = torch.zeros(block.view.shape, device=generator.device)
    if block.role == "weight" and block.view.ndim > 1:
        torch.nn.init.xavier_normal_(drawn, generator=generator)
    return drawn


shrink_perturb = plain(ShrinkPerturb)
"""Shrink and perturb the weights of a model once, in place."""
