"""The forward order of a network's layers: declared, or traced.

A traced network that branches or reuses a layer is refused: its order would be a guess. A declared
order may end in a tuple of names: heads that all read what the layer before them gives.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.blocks import NORMS, Block
from rlplast.core.network.network import Network
from rlplast.core.network.trace import UNTRACEABLE, asks_shape, is_matrix, traced, why

__all__ = [
    "Order",
    "check_matrices",
    "declared_order",
    "forward_order",
    "heads",
    "last_layers",
    "matrices",
]

Order = Sequence[str | tuple[str, ...]]


def forward_order(network: Network) -> list[str]:
    """Return the paths of the modules that hold parameters or normalise, in forward order.

    Raises:
        ConfigError: for an order that is not declared and not a traceable chain of layers used
            once; or if a declared layer does not exist, or heads are not at the end.
    """
    modules = dict(network.module.named_modules())
    declared = declared_order(network)
    if declared is not None:
        names: list[str] = []
        for i, place in enumerate(declared):
            if isinstance(place, tuple) and i < len(declared) - 1:
                raise ConfigError(
                    f"{network.name}: declared order has {place} side by side before its end; "
                    "allowed is at the end only"
                )
            names += place if isinstance(place, tuple) else (place,)
        order: list[str] = []
        for name in names:
            if name not in modules:
                raise ConfigError(f"{network.name}: declared order names no module {name!r}")
            order += _with_inside(modules, name)
        return order
    if len(modules) == 1:  # a single layer, which a trace would look into
        return [name for name, m in modules.items() if _counts(m)]
    return _traced(network, modules)


def heads(network: Network) -> tuple[str, ...]:
    """Return the layers at the end of a declared order that read the same input; () if none."""
    declared = declared_order(network)
    last = declared[-1] if declared else None
    return last if isinstance(last, tuple) else ()


def last_layers(network: Network) -> frozenset[str]:
    """Return the layers whose outputs are the network's: those flagged, else declared or traced.

    Where nothing says so it is the layer registered last, and a warning.
    """
    if "last_layers" not in network.cache:
        network.cache["last_layers"] = _last_layers(network)
    return network.cache["last_layers"]


def _last_layers(network: Network) -> frozenset[str]:
    flagged = {block.path for block in network.blocks if block.spec.head}
    modules = network.module.named_modules()
    flagged |= {path for path, module in modules if getattr(module, "is_head", False)}  # tied ones
    if flagged:
        return frozenset(flagged)
    last = heads(network) or (declared_order(network) or ())[-1:]
    known = frozenset(map(str, last)) | network.units().heads
    layers = {path: m for path, m in network.module.named_modules() if is_matrix(m)}
    if known or not layers:
        return known
    *others, last = [p for p, m in layers.items() if not isinstance(m, _ConvNd)] or layers
    if others:
        warnings.warn(
            f"the head of network {network.name!r} is not known, and {last} is taken, the layer "
            "registered last: say which one it is, as in model.out.is_head = True",
            stacklevel=2,
        )
    return frozenset([last])


def matrices(network: Network, blocks: Sequence[Block], heads: bool = True) -> list[Block]:
    """Return the untied weights of linear and conv layers, and of `last_layers` if `heads`."""
    key = ("matrices", tuple(blocks), heads)
    if key not in network.cache:
        kept = frozenset() if heads else last_layers(network)
        weights = [b for b in blocks if b.role == "weight" and b.kind in ("linear", "conv")]
        network.cache[key] = [b for b in weights if not b.aliases and b.path not in kept]
    return network.cache[key]


def check_matrices(network: Network, blocks: Sequence[Block], heads: bool, method: str) -> None:
    """Refuse a scope without a weight of a linear or conv layer; no Blocks at all are allowed."""
    if blocks and not matrices(network, blocks, heads):
        raise NothingToEdit(
            f"{method} finds no linear or conv weight in its scope of network {network.name!r}"
        )


def declared_order(network: Network) -> Order | None:
    """Return the order that a network or its module declares; None if they declare none."""
    if network.order is not None:
        return network.order
    declare = getattr(network.module, "forward_order", None)
    return None if declare is None else declare()


def _counts(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or next(module.parameters(recurse=False), None) is not None


def _with_inside(modules: Mapping[str, nn.Module], path: str) -> list[str]:
    """Return a layer's path, and after it those inside, such as a norm that it brought along."""
    inside = modules[path].named_modules()
    return [path, *(f"{path}.{name}" for name, m in inside if name and _counts(m))]


def _traced(network: Network, modules: dict[str, nn.Module]) -> list[str]:
    remedy = (
        "declare the forward order, by forward_order() of the module or order=[...] of its "
        "Network, or take a part that is a chain, by networks={...} in a callback"
    )
    try:
        graph = traced(network.module)
    except UNTRACEABLE as error:
        raise ConfigError(f"{network.name} could not be traced ({why(error)}): {remedy}") from error
    order: list[str] = []
    data: dict[torch.fx.Node, None] = {}  # what depends on the input, in order
    for node in graph.nodes:
        sources = [n for n in node.all_input_nodes if n in data]
        if node.op != "output" and len(sources) > 1:
            names = ", ".join(n.name for n in sources)
            raise ConfigError(f"{network.name} branches: {node.name} joins {names}; {remedy}")
        if node.op == "placeholder" or (sources and not asks_shape(node)):
            data[node] = None
        if node.op == "call_module" and hasattr(modules[str(node.target)], "unit_specs"):
            within = f"{network.name}.{node.target}"
            raise ConfigError(f"{within} declares units and is not traced, so may branch; {remedy}")
        if node.op == "call_module" and _counts(modules[str(node.target)]):
            if str(node.target) in order:
                raise ConfigError(f"{network.name} uses {node.target} twice; {remedy}")
            order += _with_inside(modules, str(node.target))
    for node in data:
        users = [user.name for user in node.users if user in data and user.op != "output"]
        if len(users) > 1:
            raise ConfigError(
                f"{network.name} branches: {node.name} feeds {', '.join(users)}; {remedy}"
            )
    return order
