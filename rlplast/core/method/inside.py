"""What rules do inside updates, where nothing is checked against the device and nothing waits."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.method.context import Activations, Context
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, Scale, masks, unmasked
from rlplast.core.network.network import Network

__all__ = ["accumulate", "check_activations", "refuse_low_precision"]


@torch.no_grad()
def accumulate(sums: Tensor, edits: Sequence[Edit]) -> None:
    """Add what a plan will do to [Σ sfe, Σ log factor, Σ entries, firings]."""
    scales = [e for e in edits if isinstance(e, Scale) and isinstance(e.target, Block)]
    if scales:
        factors = torch.stack([e.factor for e in scales]).double()
        norms = torch.stack(
            [
                e.norm if e.norm is not None else torch.linalg.vector_norm(e.target.view)
                for e in scales
            ]
        )
        sums[0] += ((factors - 1) * norms).square().sum()
        sums[1] += factors.log().sum()
    for edit in edits:
        if isinstance(edit, Assign) and isinstance(edit.target, Block):
            change = (edit.value.double() - edit.now().double()).square()
            sums[0] += (change if edit.mask is None else change.where(edit.mask, 0)).sum()
    for mask in masks(edits):
        sums[2] += mask.sum()
    # One addition for all: each tensor operation costs as much as a small layer.
    sums[2] += unmasked(edits)
    sums[3] += 1


def check_activations(label: str, context: Context, activations: Activations) -> None:
    """Refuse activations of an update that are not one tensor per group of units."""
    for group in context.units:
        value = activations.get(group.name) if isinstance(activations, Mapping) else activations
        fits = isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == group.size
        if not fits:
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"{label}: activations= of network {context.network.name!r} have {what} for "
                f"{group.name}: allowed is a mapping that has a tensor (samples, {group.size}, …) "
                "of it, and one of each other group of rlplast.units, as rlplast.record gives it"
            )


def refuse_low_precision(network: Network, block: Block) -> None:
    """Refuse a weight in low precision, where small changes round to nothing."""
    if block.view.dtype in (torch.bfloat16, torch.float16):
        raise BadWeights(
            f"{network.qualified(block)} is {block.view.dtype}: a change made every update would "
            "round to nothing; train it in float32 (autocast may still compute in bfloat16)"
        )
