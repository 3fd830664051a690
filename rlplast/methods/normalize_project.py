"""Normalise and project (NaP): Lyle et al. 2024."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.method.inside import refuse_low_precision
from rlplast.core.method.method import Block, Context, Edit, Method, Network, Scale, State, method
from rlplast.core.network.order import matrices
from rlplast.core.validation import Updates
from rlplast.methods.normalised import normalise
from rlplast.metrics.ranks import at_least_float32

__all__ = ["NormalizeProject"]

EPS = 1e-5


@method("normalize_project", key="layers", source="Lyle et al. 2024 (NaP)")
@dataclass(frozen=True)
class NormalizeProject(Method):
    """Put a LayerNorm before every nonlinearity, and keep the norm of every weight matrix: NaP.

    Layers with hidden units get a LayerNorm at their output, unless a norm layer follows already,
    and lose the bias it makes redundant. After every update each weight matrix of linear and conv
    layers is scaled back to its initial norm (a conv's whole tensor, a stacked layer's per
    member). The learning rate no longer falls by growing weights: give it a schedule.

    Attributes:
        scale_offset: the norms' scale γ and shift β: ``drop`` none; ``project``
            √(‖γ‖² + ‖β‖²) is kept (for homogeneous nonlinearities such as ReLU);
            ``regularise`` towards 1 and 0 by a term of the loss.
        coef: strength of ``regularise``: coef · (Σ(γ − 1)² + Σβ²).
        every: updates between two projections.
        include_head: whether output layers are projected too (the paper: unclear).
    """

    scale_offset: Literal["drop", "project", "regularise"] = "project"
    coef: NonNegativeFloat = 1e-2
    every: Updates = 1
    include_head: bool = False

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Normalise every layer with hidden units in place; return their paths."""
        affine = self.scale_offset != "drop"
        return normalise(model, self.name, affine=affine, eps=EPS, bias=False)

    def covers(self, block: Block) -> bool:
        """Return whether the term pulls at a Block: scale and shift, if they are regularised."""
        return self.scale_offset == "regularise" and block.role in ("scale", "shift")

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef · (Σ(γ − 1)² + Σβ²)."""
        offsets = [
            b.live() - b.spec.start if b.role == "scale" else b.live() for b in context.blocks
        ]
        return self.coef * torch.stack([t.float().square().sum() for t in offsets]).sum()

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the initial norms of the weights, and of each norm layer's scale and shift."""
        weights, pairs = self._projected(network)
        for block in (*weights, *(b for pair in pairs for b in pair)):
            refuse_low_precision(network, block)
        device = network.blocks[0].view.device
        norms = [_norm_of([network.initial[b.name]]) for b in weights]
        joint = [_norm_of([network.initial[b.name] for b in pair]) for pair in pairs]
        empty = torch.zeros(0, device=device)
        return {
            "weights": torch.stack(norms).to(device) if norms else empty,
            "pairs": torch.stack(joint).to(device) if joint else empty,
        }

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan a factor per weight, and per norm layer; branch-free, without waiting."""
        if not self.captured_key(context.clock):
            return []
        weights, pairs = self._projected(context.network)
        edits: list[Edit] = []
        for block, initial in zip(weights, state["weights"], strict=True):
            norm = _norm_of([block.view])
            edits.append(Scale(block, _factor(initial, norm), norm))
        for pair, initial in zip(pairs, state["pairs"], strict=True):
            factor = _factor(initial, _norm_of([b.view for b in pair]))
            edits += [Scale(block, factor) for block in pair]
        return edits

    def captured_key(self, clock: Clock) -> bool:
        """Whether this update projects."""
        return clock.updates % self.every == 0

    def _projected(self, network: Network) -> tuple[list[Block], list[list[Block]]]:
        """Return the weights that are projected, and the (scale, shift) of each norm layer."""
        norms: dict[str, list[Block]] = {}
        for b in network.trainable() if self.scale_offset == "project" else ():
            if b.kind == "norm":
                norms.setdefault(b.layer, []).append(b)
        return matrices(network, network.trainable(), self.include_head), list(norms.values())


def _norm_of(tensors: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.cat([at_least_float32(t).reshape(-1) for t in tensors]))


def _factor(initial: Tensor, norm: Tensor) -> Tensor:
    return torch.where(norm > 0, initial.to(norm) / norm, 1.0)
