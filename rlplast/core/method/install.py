"""Modules that methods bring: installed when networks are built."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, NothingToEdit, did_you_mean
from rlplast.core.fast.linear import Linear
from rlplast.core.method.listing import Row, parse_row, row_implements
from rlplast.core.method.method import Method, implements
from rlplast.core.method.rule import Rule
from rlplast.core.method.scope import stands_for
from rlplast.core.network.blocks import blocks_of, unwrap
from rlplast.core.network.network import INSTALLED, Network
from rlplast.core.network.unit_search import find_units
from rlplast.core.network.units import UnitGroup
from rlplast.core.registry import build
from rlplast.core.rng import derive_seed

__all__ = [
    "as_kind",
    "check_kind",
    "hidden_layers",
    "install_methods",
    "installed_rules",
    "kind_of",
    "named_layers",
    "put",
    "replace_layers",
    "tick",
]


def install_methods(
    layers: Sequence[Mapping[str, Any]],
    hooks: Sequence[Mapping[str, Any]],
    networks: Mapping[str, Sequence[nn.Module]],
    seed: int,
) -> dict[str, list[str]]:
    """Install the modules of methods under ``layers`` and ``hooks``; return their paths by network.

    Call it before modules are initialised, get optimizers, and are compiled or captured. Networks
    come with their followers, which get the same modules with the same draws.

    Raises:
        ConfigError: for a wrong entry, and one that finds nothing to replace in a network it names,
            or in any.
    """
    listed = [
        parse_row(f"{key}[{i}]", config, key, networks)
        for key, configs in (("layers", layers), ("hooks", hooks))
        for i, config in enumerate(configs)
        if key == "layers" or row_implements(config, "install")
    ]
    replaced: dict[str, list[str]] = {}
    for row in listed:
        for name, paths in _install(row, networks, seed).items():
            replaced.setdefault(name, []).extend(paths)
    return replaced


def _install(
    row: Row, networks: Mapping[str, Sequence[nn.Module]], seed: int
) -> dict[str, list[str]]:
    replaced: dict[str, list[str]] = {}
    missing: NothingToEdit | None = None
    for name in row.networks:
        network_seed = derive_seed(seed, "layers", row.method.name, name)
        try:
            paths = [_into(unwrap(m), row.method, network_seed) for m in networks[name]]
            replaced[name] = paths[0]
        except NothingToEdit as error:
            if row.named:
                raise NothingToEdit(f"{row.label}, network {name!r}: {error}") from error
            missing = error
    if not replaced:
        raise NothingToEdit(f"{row.label}: {missing or 'the run has no network'}")
    return replaced


def _into(module: nn.Module, method: Method, seed: int) -> list[str]:
    paths = method.install(module, seed)
    modules = dict(module.named_modules())
    for path in ("", *paths):  # the parts too: a Network may be made of one of them
        if path in modules:
            vars(modules[path]).setdefault(INSTALLED, []).append(method)
    return paths


def hidden_layers(model: nn.Module, method: str) -> dict[str, list[UnitGroup]]:
    """Return the layers with hidden units by path, a stacked one's by member; or refuse a model."""
    units = find_units(model, blocks_of(model))
    layers: dict[str, list[UnitGroup]] = {}
    for group in units.groups:
        if group.point is not None:
            layers.setdefault(group.weight.block.path, []).append(group)
    if not layers:
        reasons = "; ".join(f"{name}: {why}" for name, why in units.refused.items())
        raise NothingToEdit(f"{method} finds no layer with hidden units ({reasons})")
    return layers


def named_layers(
    model: nn.Module, names: Sequence[str], able: Callable[[nn.Module], bool], label: str
) -> list[str]:
    """Return the paths of the layers that names or globs match, in the model's order.

    Modules for which `able` holds may be named; a name or glob that matches none is refused.
    """
    layers = [path for path, module in model.named_modules() if able(module)]
    chosen: set[str] = set()
    for name in names:
        matching = [path for path in layers if stands_for(name, path)]
        if not matching:
            near = did_you_mean(name, layers)
            raise NothingToEdit(f"{label}: {name!r} matches no layer: {near}")
        chosen |= set(matching)
    return [path for path in layers if path in chosen]


def kind_of(layer: nn.Module) -> type[nn.Module]:
    """Return a layer's class; torch's own for `rlplast.core.fast.linear.Linear`."""
    return nn.Linear if type(layer) is Linear else type(layer)


def check_kind(layer: nn.Module, allowed: Collection[type[nn.Module]], where: str) -> None:
    """Raise a `ConfigError` for a layer of another class than some; `where` is method and path."""
    if kind_of(layer) not in allowed:
        names = ", ".join(kind.__name__ for kind in allowed)
        raise ConfigError(f"{where} is a {type(layer).__name__}: allowed are {names}")


def as_kind(layer: nn.Module, kind: type[nn.Module]) -> Any:
    """Return a module of another class that takes over a layer's parameters themselves."""
    new: Any = kind.__new__(kind)
    for name, value in vars(layer).items():
        vars(new)[name] = copy.copy(value) if isinstance(value, dict | set) else value
    return new


def put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is; a model that is itself the layer is refused."""
    if model is old:
        raise ConfigError(
            f"the model is itself the layer to replace, a {type(old).__name__}: put it into an "
            "nn.Sequential, whose layer can be replaced"
        )
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[name] = new


def replace_layers(
    model: nn.Module, method: str = "lifecycle", *, seed: int = 0, **params: Any
) -> list[str]:
    """Install a method's modules in your model, in place.

    Call it before you make an optimizer or a `Network` for the model, and before you compile it.
    Make a target network as a deep copy afterwards, or call this on it with the same seed.

    Args:
        model: the model; wrappers are removed.
        method: name of the method, see `rlplast list layers`.
        seed: seed of the random draws of the new modules.
        **params: the method's parameters.

    Returns:
        The paths of the replaced modules.

    Raises:
        ConfigError: for unknown parameters or layers, a method without modules, if there is nothing
            to replace, or if the model is itself the layer: then no module holds it.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> replace_layers(net, life=[10, 20], recovery=[2, 4])
        ['0']
    """
    chosen: Method = build("methods", method, params)
    if not implements(chosen, "install"):
        raise ConfigError(
            f"replace_layers: {method!r} brings no modules: it belongs under the key "
            f"{chosen.key!r} of a config; for here see `rlplast list layers`"
        )
    return _into(unwrap(model), chosen, derive_seed(seed, "layers", method, "model"))


def installed_rules(networks: Iterable[Network], made: Iterable[Rule] = ()) -> list[Rule]:
    """Return a rule per method under ``layers`` and network that has its modules.

    Those that were `made` already, which hold the methods' state, are taken over.
    """
    known = {(rule.method, rule.known[0]): rule for rule in made if rule.method.key == "layers"}
    rows = [(m, n) for n in networks for m in n.installed if m.key == "layers"]
    return [
        known.get((m, n)) or Rule(Row(f"layers/{i} {m.name}", m), (n,))
        for i, (m, n) in enumerate(rows)
    ]


def tick(network: Network) -> None:
    """Advance every lifecycle layer of a network by one update; call it after each optimizer step.

    `Hooks` does this for its networks at every update.

    Args:
        network: a network whose module has layers that act at every update.

    Raises:
        ConfigError: if there is no such layer, or `network` is a bare module.
    """
    if not isinstance(network, Network):
        raise ConfigError(
            f"tick got a {type(network).__name__}: make a rlplast.Network of the model and its "
            "optimizer, once, and pass that"
        )
    network.refresh()
    rules, count = network.ticks or (installed_rules([network]), 0)
    rules = [rule for rule in rules if implements(rule.method, "plan")]
    if not rules:
        raise ConfigError(
            "tick: the model has no layer that ticks: call rlplast.replace_layers on it first"
        )
    network.ticks = rules, count + 1
    for rule in rules:
        rule.refresh()
        rule.tick(Clock(updates=count + 1), 0)
