"""Plasticity injection: Nikishin et al. 2023, Sec. 3."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.fast.linear import Linear
from rlplast.core.method.install import as_kind, check_kind, kind_of, put
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.order import last_layers
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.units import Step, UnitGroup
from rlplast.methods.head_reset import head_blocks

__all__ = ["PlasticityInjection"]


class _Features:
    """The input of a head's first layer, kept until its last layer has run."""

    x: Tensor | None = None

    def take(self) -> Tensor:
        """Return the input and forget it, so that the module can be copied between passes."""
        x, self.x = self.x, None
        if x is None:
            raise RuntimeError("the last layer of an injected head was called before its first")
        return x


class _Remembering(nn.Module):
    """The first layer of a head with several layers: it stores its input."""

    features: _Features
    beside: tuple[str, ...]  # paths of the frozen layers with the same input

    def forward(self, x: Tensor) -> Tensor:
        self.features.x = x
        return super().forward(x)


class _RememberingLinear(_Remembering, Linear):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _RememberingStacked(_Remembering, StackedLinear):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class Injected(nn.Module):
    """The last layer of a head: f(x); after the injection f_old(x) + (f(x) − f_new(x))."""

    old: nn.ModuleList  # the head as it was at the injection; buffers
    new: nn.ModuleList  # the fresh head as it was then; buffers
    gate: Tensor  # whether it has been injected, 0 or 1
    features: _Features | None  # None if this layer is the head's first
    steps: tuple[Callable[[Tensor], Tensor], ...]  # after each layer of the head but the last
    paths: tuple[str, ...]  # of the head's layers, in their network
    beside: tuple[str, ...]  # of the frozen layers with the same input, if this one is the first

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        x = x if self.features is None else self.features.take()
        change = y - self._frozen(self.new, x)  # exactly 0 at the injection
        return torch.where(self.gate > 0, self._frozen(self.old, x) + change, y)

    def _frozen(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        for layer, step in zip(layers[:-1], self.steps, strict=True):
            x = step(layer(x))
        return layers[-1](x)


class InjectedLinear(Injected, Linear):  # pyright: ignore[reportIncompatibleMethodOverride]
    """An injected linear layer."""


class InjectedStackedLinear(Injected, StackedLinear):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The injected last layers of an ensemble's members."""


_SWAPS: dict[type[nn.Module], tuple[type[nn.Module], type[nn.Module]]] = {
    nn.Linear: (_RememberingLinear, InjectedLinear),
    StackedLinear: (_RememberingStacked, InjectedStackedLinear),
}


@method("plasticity_injection", source="Nikishin et al. 2023, Sec. 3")
@dataclass(frozen=True)
class PlasticityInjection(Method):
    """Freeze the head and learn changes with a fresh one: f_old(x) + (f_new(x) − f_new0(x)).

    Until it fires the network computes as without it. Then the head is drawn anew and trains on,
    beside frozen copies of the old head and of the draw, so that no output changes at that moment.
    Layers below the head train on. A second injection is refused, and so is a tied head.

    Attributes:
        layers: how many linear layers the head has, counted from the last; None for all of them
            in a network with convs, else one. Heads side by side are injected each, and have one.
    """

    policies = ("touched", "copy")
    fires_once = True

    layers: PositiveInt | None = None

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Replace the head's first and last layer in place; return their paths."""
        network = Network("model", model)
        head = head_blocks(network, network.blocks, self.layers, self.name)
        paths = list(dict.fromkeys(b.path for b in head))
        for block in head:
            if block.aliases:
                raise ConfigError(
                    f"plasticity_injection: {block.name} is tied to {', '.join(block.aliases)}"
                )
        for path in paths:
            check_kind(model.get_submodule(path), _SWAPS, f"{self.name}: {path}")
        side_by_side = [path for path in paths if path in last_layers(network)]
        chains = [[path] for path in side_by_side] if len(side_by_side) > 1 else [paths]
        if len(paths) > len(side_by_side) > 1:
            raise ConfigError(
                f"plasticity_injection.layers = {self.layers}: heads side by side "
                f"({', '.join(side_by_side)}) have one layer each; allowed is 1"
            )
        return [path for chain in chains for path in _inject(model, network, chain)]

    def check_layers(
        self, network: Network, blocks: Sequence[Block], left: Sequence[Block]
    ) -> None:
        """Refuse the hook's key layers: the parameter `layers` says what the head is."""
        raise ConfigError(
            "plasticity_injection injects the head as it was installed: leave out the hook's key "
            "layers; params: {layers: 1} sets how many layers the head has"
        )

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Keep no state: it is in the module's buffers."""
        able, injected = {b.name for b in blocks}, _injected(network)
        for live in (path for _, layer in injected for path in layer.paths):
            for block in (b for b in _weights(network, live) if b.name not in able):
                raise NothingToEdit(
                    f"plasticity_injection would edit {network.qualified(block)}, which is frozen "
                    "or outside the hook's scope: train the whole head, and leave scope out"
                )
        if not injected:
            raise NothingToEdit(
                f"plasticity_injection is not installed in network {network.name!r}: list it under "
                "`hooks:` of a run, or call rlplast.replace_layers(model, 'plasticity_injection') "
                "before the model gets its optimizer"
            )
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the injection."""
        network, generator = context.network, context.stream()
        named = {b.name: b for b in network.blocks}
        edits: list[Edit] = []
        for path, layer in _injected(network):
            if bool(layer.gate > 0):
                raise ConfigError(
                    f"{network.name}.{path} has been injected: a second injection is refused"
                )
            for i, live in enumerate(layer.paths):
                for block in _weights(network, live):
                    fresh = network.fresh(block, generator).to(block.view)
                    for kind, value in (("old", block.view.clone()), ("new", fresh)):
                        edits.append(Assign(named[_copy_name(block, path, kind, i)], value))
                    edits.append(Assign(block, fresh))
            edits.append(Assign(named[f"{path}.gate"], torch.ones_like(layer.gate)))
        return edits


def _inject(model: nn.Module, network: Network, chain: list[str]) -> list[str]:
    """Replace the last layer of a head, and the first if it is another one."""
    layers = [model.get_submodule(path) for path in chain]
    groups = {g.weight.block.path: g for g in network.units().groups}
    steps = [step for path in chain[:-1] for step in _between(network, path, groups.get(path))]
    features = None if len(chain) == 1 else _Features()
    last = as_kind(layers[-1], _SWAPS[kind_of(layers[-1])][1])
    beside = tuple(f"{chain[-1]}.{kind}.0" for kind in ("old", "new"))
    last.features, last.steps, last.paths = features, tuple(steps), tuple(chain)
    last.beside = beside if features is None else ()
    last.old, last.new = (nn.ModuleList(_frozen(layer) for layer in layers) for _ in range(2))
    last.register_buffer("gate", torch.zeros((), device=next(layers[-1].parameters()).device))
    put(model, layers[-1], last)
    if features is not None:
        first = as_kind(layers[0], _SWAPS[kind_of(layers[0])][0])
        first.features, first.beside = features, beside
        put(model, layers[0], first)
    return [chain[0], chain[-1]] if features is not None else chain


def _between(network: Network, path: str, group: UnitGroup | None) -> tuple[Step, ...]:
    """Return the steps from a layer's output to the input of the next one."""
    if group is None or group.point is None:
        reason = network.units().refused.get(path, "it has no units")
    elif group.norms or group.point.between:
        others = dict.fromkeys([p.block.path for p in group.norms] + list(group.point.between))
        reason = f"between it and the next layer lies {', '.join(others)}"
    else:
        return group.point.steps
    raise ConfigError(
        f"plasticity_injection: what follows {path} cannot be repeated ({reason}): give layers: 1"
    )


def _frozen(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer with zero weights, which are buffers."""
    frozen = copy.deepcopy(layer)
    for name, parameter in list(frozen.named_parameters()):
        del frozen._parameters[name]
        frozen.register_buffer(name, torch.zeros_like(parameter, requires_grad=False))
    return frozen


def _injected(network: Network) -> list[tuple[str, Injected]]:
    return [(p, m) for p, m in network.module.named_modules() if isinstance(m, Injected)]


def _weights(network: Network, path: str) -> list[Block]:
    return [b for b in network.blocks if b.path == path and b.role in ("weight", "bias")]


def _copy_name(block: Block, path: str, kind: str, index: int) -> str:
    stacked = block.name.startswith("[")  # chains beside one another have their own names
    prefix = f"[{block.spec.member}]." if stacked else ""
    return f"{prefix}{path}.{kind}.{index}.{block.spec.tensor}"
