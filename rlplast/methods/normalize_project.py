"""Normalise and project: LayerNorm before nonlinearities, weights at their initial norms.

Source: Lyle et al. 2024 (NaP).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.context import Context
from rlplast.core.method.hook import refuse_low_precision
from rlplast.core.method.install import as_kind, put
from rlplast.core.method.method import Method, State, method
from rlplast.core.network.blocks import Block, blocks_of
from rlplast.core.network.edits import Edit, Scale
from rlplast.core.network.network import Network
from rlplast.core.network.order import last_layers
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear
from rlplast.core.network.unit_search import find_units
from rlplast.core.registry import param

__all__ = ["NormalizeProject"]

EPS = 1e-5


class _Normalized(nn.Module):
    """A layer without bias whose output is normalised before the nonlinearity."""

    norm: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised output of the layer."""
        return self.norm(super().forward(x))


class NormalizedLinear(_Normalized, nn.Linear):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A linear layer followed by LayerNorm over its outputs."""


class NormalizedConv2d(_Normalized, nn.Conv2d):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A conv followed by LayerNorm over channels, height and width; scale and shift per channel."""


class NormalizedStackedLinear(_Normalized, StackedLinear):
    """The members of an ensemble, each followed by LayerNorm over its outputs."""


class _StackedPlainNorm(nn.Module):
    """LayerNorm over the last dimension without scale and shift."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input."""
        wide = x if x.dtype == torch.float64 else x.float()
        return nn.functional.layer_norm(wide, x.shape[-1:], eps=EPS).to(x.dtype)


@method("normalize_project", key="layers", source="Lyle et al. 2024 (NaP)")
@dataclass(frozen=True)
class NormalizeProject(Method):
    """Put a LayerNorm before every nonlinearity, and keep the norm of every weight: NaP.

    Layers with hidden units get a LayerNorm at their output, unless a norm layer follows already,
    and lose the bias it makes redundant. After every update each weight matrix of linear and conv
    layers is scaled back to its initial norm (a conv's whole tensor, a stacked layer's per
    member); matrices of norm 0 stay. Embeddings and tied weights are untouched. Optimizer state is
    kept and followers are left. The learning rate no longer falls by growing weights: give it a
    schedule.

    Attributes:
        scale_offset: the norms' scale γ and shift β: ``drop`` none; ``project``
            √(‖γ‖² + ‖β‖²) is kept (for homogeneous nonlinearities such as ReLU);
            ``regularise`` towards 1 and 0 by a term of the loss.
        coef: strength of ``regularise``: coef · (Σ(γ − 1)² + Σβ²).
        every: updates between two projections.
        include_head: whether output layers are projected too (the paper: unclear).
    """

    scale_offset: str = param("project", "drop | project | regularise")
    coef: float = param(1e-2, "[0, inf)")
    every: int = param(1, "[1, 1000000000]")
    include_head: bool = param(False, "")

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Normalise every layer with hidden units in place; return their paths.

        Raises:
            NothingToEdit: if there is none.
            ConfigError: for a layer that is normalised by this method already.
        """
        units = find_units(model, blocks_of(model))
        groups = {g.weight.block.path: g for g in units.groups if g.tap is not None}
        if not groups:
            reasons = "; ".join(f"{name}: {why}" for name, why in units.refused.items())
            raise NothingToEdit(f"normalize_project finds no layer with hidden units ({reasons})")
        paths = [path for path, group in groups.items() if not group.norms]
        for path in groups:
            if isinstance(model.get_submodule(path), _Normalized):
                raise ConfigError(f"normalize_project: {path} is normalised by it already")
        for path in paths:
            layer = model.get_submodule(path)
            put(model, layer, self._normalized(path, layer))
        return paths

    def _normalized(self, path: str, layer: nn.Module) -> nn.Module:
        """Return a layer with the weight of `layer` itself, a norm and no bias."""
        if type(layer) not in _SWAPS:
            allowed = ", ".join(kind.__name__ for kind in _SWAPS)
            raise ConfigError(
                f"normalize_project: {path} is a {type(layer).__name__}: allowed are {allowed}"
            )
        new = as_kind(layer, _SWAPS[type(layer)])
        new._parameters["bias"] = None
        new.norm = _norm(layer, self.scale_offset != "drop")
        return new

    def covers(self, block: Block) -> bool:
        """Return whether the term pulls at a Block: scale and shift, if they are regularised."""
        return self.scale_offset == "regularise" and block.role in ("scale", "shift")

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef · (Σ(γ − 1)² + Σβ²)."""
        offsets = [b.live() - 1 if b.role == "scale" else b.live() for b in context.blocks]
        return self.coef * torch.stack([t.float().square().sum() for t in offsets]).sum()

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the initial norms of the weights, and of each norm layer's scale and shift.

        Raises:
            BadWeights: for weights in low precision without a master.
        """
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
        if context.clock.updates % self.every:
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

    def _projected(self, network: Network) -> tuple[list[Block], list[list[Block]]]:
        """Return the weights that are projected, and the (scale, shift) of each norm layer."""
        key = (self, "projected")
        if key not in network.memo:
            kept = () if self.include_head else last_layers(network)
            matrices = [b for b in network.trainable() if b.role == "weight" and not b.aliases]
            weights = [b for b in matrices if b.kind in ("linear", "conv") and b.path not in kept]
            norms: dict[str, list[Block]] = {}
            for b in network.trainable() if self.scale_offset == "project" else ():
                if b.kind == "norm":
                    norms.setdefault(b.layer, []).append(b)
            network.memo[key] = weights, list(norms.values())
        return network.memo[key]


_SWAPS: dict[type[nn.Module], type[Any]] = {
    nn.Linear: NormalizedLinear,
    nn.Conv2d: NormalizedConv2d,
    StackedLinear: NormalizedStackedLinear,
}


def _norm(layer: Any, affine: bool) -> nn.Module:
    """Return the LayerNorm of a layer's output."""
    device, dtype = layer.weight.device, layer.weight.dtype
    if isinstance(layer, StackedLinear):
        norm = StackedLayerNorm(layer.slots, layer.d_out, EPS) if affine else _StackedPlainNorm()
    elif isinstance(layer, nn.Conv2d):
        norm = nn.GroupNorm(1, layer.out_channels, EPS, affine)
    else:
        norm = nn.LayerNorm(layer.out_features, EPS, affine)
    return norm.to(device, dtype).requires_grad_(layer.weight.requires_grad)


def _norm_of(tensors: Sequence[Tensor]) -> Tensor:
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    return torch.linalg.vector_norm(torch.cat([t.reshape(-1).to(wide) for t in tensors]))


def _factor(initial: Tensor, norm: Tensor) -> Tensor:
    return torch.where(norm > 0, initial.to(norm) / norm, 1.0)
