"""Lifecycle: the lifecycle paper (Yang), Sec. 3 and Algorithm 1."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.install import kind_of, named_layers, put
from rlplast.core.method.method import Context, Edit, Method, Network, State, method
from rlplast.core.network.blocks import blocks_of
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.unit_search import find_units
from rlplast.core.network.units import Part, UnitGroup
from rlplast.core.rng import derive_seed
from rlplast.core.validation import Names, Pair, Updates
from rlplast.methods.lifecycle_modules import (
    LifecycleConv2d,
    LifecycleLinear,
    LifecycleMultiheadAttention,
    LifecycleUnits,
    StackedLifecycleLinear,
)
from rlplast.methods.lifecycle_tick import InstalledLayer, tick

__all__ = ["Lifecycle"]

# Exact types only: a subclass may compute something else in its forward.
SWAPS: dict[type[nn.Module], type[LifecycleUnits]] = {
    nn.Linear: LifecycleLinear,
    nn.Conv2d: LifecycleConv2d,
    StackedLinear: StackedLifecycleLinear,
    nn.MultiheadAttention: LifecycleMultiheadAttention,
}


@method("lifecycle", key="layers", source="Lifecycle paper (Yang), Sec. 3.2 and Algorithm 1")
@dataclass(frozen=True)
class Lifecycle(Method):
    """Let hidden units sleep for a while and wake up with the weights they had.

    A unit (an output of a linear layer, a channel of a conv, a head of an attention) computes
    for `life` ticks, is masked for `recovery` ticks, and returns with the weight and bias it
    had, growing to full strength over `warmup` ticks. Followers (target, average) get the same
    layers, never tick, and compute unmasked unless `target_mask` is ``online``.

    Attributes:
        life: range of a life, in ticks; each unit draws L_max from it once (ours).
        recovery: range of a sleep, in ticks; each unit draws R_max from it once (ours).
        warmup: ticks to full strength after waking; 0: at once.
        memory: what a unit wakes up with: ``restore`` its own weights, ``he`` or ``xavier`` a
            new draw (the paper's ablations).
        redraw: whether a unit draws both durations anew each time it wakes up.
        eval_mask: whether the mask holds in evaluation mode (the paper does not say).
        target_mask: whether followers compute with the network's own mask.
        layers: names or globs of modules; None: every linear, conv and attention layer with
            hidden units (`rlplast units`).
        clear_moments: whether the optimizer forgets a woken unit: the moments of its row, and
            of its column in the layer that directly reads it; ``step`` is kept.
    """

    reads = ("moments",)

    life: Pair[Updates] = (1000, 5000)
    recovery: Pair[Updates] = (100, 500)
    warmup: Annotated[int, Field(ge=0, le=1_000_000_000)] = 100
    memory: Literal["restore", "he", "xavier"] = "restore"
    redraw: bool = False
    eval_mask: bool = True
    target_mask: Literal["none", "online"] = "none"
    layers: Names | None = None
    clear_moments: bool = False

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Replace the chosen layers of `model` in place; return their paths."""
        modules = dict(model.named_modules())
        if self.layers is None:
            paths = self._hidden(model)
        else:
            paths = named_layers(model, self.layers, _is_unit_layer, "lifecycle.layers")
        for path in paths:
            if isinstance(modules[path], LifecycleUnits):
                raise ConfigError(f"lifecycle: {path} is a lifecycle layer already")
            _refuse_tied(model, path)
        for path in paths:
            old = modules[path]
            put(model, old, SWAPS[kind_of(old)].of(old, self, derive_seed(seed, path)))
        _avoid_fast_paths(model)
        return paths

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Return the plan of one tick of every layer; empty in evaluation mode."""
        edits: list[Edit] = []
        for place in _places(context.network):
            # Layers of one model may be of two calls with parameters of their own.
            if place.layer.training and place.layer.lifecycle == self:
                edits += tick(place, context)
        return edits

    def _hidden(self, model: nn.Module) -> list[str]:
        units = find_units(model, blocks_of(model))

        def has_mask(group: UnitGroup) -> bool:
            layer = model.get_submodule(group.weight.block.path)
            # A head is rows of three projections: linear layers have no mask for it.
            of_attention = isinstance(layer, nn.MultiheadAttention)
            return _is_unit_layer(layer) and (group.point is not None or of_attention)

        paths = list(dict.fromkeys(g.weight.block.path for g in units.groups if has_mask(g)))
        if not paths:
            reasons = "; ".join(f"{name}: {why}" for name, why in units.refused.items())
            raise NothingToEdit(
                f"lifecycle finds no layer with hidden units ({reasons}): name some in `layers`"
            )
        return paths


def _places(network: Network) -> list[InstalledLayer]:
    """Return the layers of a network that tick; found once."""
    if "lifecycle" not in network.cache:
        network.cache["lifecycle"] = [
            _place(network, path, module)
            for path, module in network.module.named_modules()
            if isinstance(module, LifecycleUnits) and not module.follows
        ]
    return network.cache["lifecycle"]


def _place(network: Network, path: str, layer: LifecycleUnits) -> InstalledLayer:
    size = layer.unit_shape()[-1]
    parts = [
        Part(b, 0, b.view.shape[0] // size)
        for b in network.blocks
        if b.path == path and b.role in ("weight", "bias")
    ]
    groups = network.units().groups if layer.lifecycle.clear_moments else ()
    outgoing = [p for g in groups if g.weight.block.path == path for p in g.outgoing]
    parts += [p for p in outgoing if p.block.role != "buffer"]  # not those of frozen copies
    return InstalledLayer(
        layer,
        tuple(f.module.get_submodule(path) for f in network.followers.values()),
        tuple((p.block.spec.member or 0, p) for p in parts),
    )


def _is_unit_layer(module: nn.Module) -> bool:
    return kind_of(module) in SWAPS or isinstance(module, LifecycleUnits)


def _refuse_tied(model: nn.Module, path: str) -> None:
    layer = model.get_submodule(path)
    names = {id(p): name for name, p in layer.named_parameters(recurse=False)}
    for other, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if module is not layer and id(parameter) in names:
                raise ConfigError(
                    f"lifecycle: {path}.{names[id(parameter)]} is tied to {other}.{name}, whose "
                    "rows would sleep with it: leave it out by naming layers"
                )


def _avoid_fast_paths(model: nn.Module) -> None:
    """Keep torch's encoder layers from computing with raw weights in evaluation mode."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            if any(isinstance(part, LifecycleUnits) for part in module.modules()):
                module.activation_relu_or_gelu = 0
