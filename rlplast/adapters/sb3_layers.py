"""Layers in Stable-Baselines3: modules that methods bring, put into a policy before it trains."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlplast.adapters.sb3_networks import find_networks
from rlplast.adapters.sb3_parts import Part
from rlplast.core.errors import ConfigError
from rlplast.core.method.install import install_methods
from rlplast.core.method.listing import parse_row, row_implements
from rlplast.core.network.network import Network

__all__ = ["install_layers"]


def install_layers(
    model: Any,
    layers: Sequence[Mapping[str, Any]],
    hooks: Sequence[Mapping[str, Any]],
    named: Collection[str],
    seed: int,
) -> None:
    """Put modules into an algorithm's networks and their targets; once, also over several calls.

    Raises:
        ConfigError: for a row that fits no network, or parameters of new modules in a model that
            has been trained already.
    """
    if not layers and not any(row_implements(hook, "install") for hook in hooks):
        return
    networks = find_networks(model, named)
    if _are_in(layers, hooks, networks):
        return
    _check_heads(hooks, networks)
    before = {id(p) for n in networks.values() for p in n.module.parameters()}
    modules = {
        name: [n.module, *(f.module for f in n.followers.values())] for name, n in networks.items()
    }
    install_methods(layers, hooks, modules, seed)
    for network in networks.values():
        if isinstance(network.module, Part):
            network.module.hand_back(model.policy)
    if {id(p) for n in networks.values() for p in n.module.parameters()} != before:
        _renew_optimizers(networks)


def _are_in(
    layers: Sequence[Mapping[str, Any]],
    hooks: Sequence[Mapping[str, Any]],
    networks: Mapping[str, Network],
) -> bool:
    lists = [("layers", layers), ("hooks", [h for h in hooks if row_implements(h, "install")])]
    methods = [
        parse_row(f"{key}[{i}]", row, key, networks).method
        for key, rows in lists
        for i, row in enumerate(rows)
    ]
    installed = [method for network in networks.values() for method in network.installed]
    return all(method in installed for method in methods)


def _check_heads(hooks: Sequence[Mapping[str, Any]], networks: Mapping[str, Network]) -> None:
    """Refuse to give a second life to the one head of several that would be taken."""
    for i, hook in enumerate(hooks):
        row = parse_row(f"hooks[{i}]", hook, "hooks", networks)
        for name in row.networks if row_implements(hook, "install") else ():
            order: Any = networks[name].order
            members = {block.spec.member for block in networks[name].blocks}
            if name != "temperature" and (
                not order or isinstance(order[-1], tuple) or members > {0}
            ):
                raise ConfigError(
                    f"{row.label} needs a network of one chain of layers that ends in one head, "
                    f"which {name!r} of this algorithm is not: allowed are networks such as q of a "
                    "DQN, the actor of a TD3, actor and critic of PPO and A2C"
                )


def _renew_optimizers(networks: Mapping[str, Network]) -> None:
    for optimizer in {o for network in networks.values() for o in network.optimizers}:
        if optimizer.state:
            raise ConfigError(
                f"layers: they bring parameters, and the {type(optimizer).__name__} has been "
                "training without them: put layers into a new model"
            )
        trained = [n.module for n in networks.values() if optimizer in n.optimizers]
        parameters = [p for module in trained for p in module.parameters() if p.requires_grad]
        group, *others = optimizer.param_groups
        if others:
            raise ConfigError(
                f"layers: they bring parameters, and the {type(optimizer).__name__} has "
                f"{len(others) + 1} groups of them: allowed is one, as an optimizer_class makes it"
            )
        group["params"] = list(dict.fromkeys(parameters))
