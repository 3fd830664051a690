"""The forward order of a network's layers, for methods that walk along it.

Declared (`Network(order=...)` or the module's own ``forward_order()``), or read off an
`nn.Sequential`, or traced. A traced network that branches or reuses a layer is refused:
its order would be a guess.
"""

import torch
from torch import nn
from torch.fx.proxy import TraceError

from rlplast.core.errors import ConfigError
from rlplast.core.network import NORMS, Network

__all__ = ["forward_order"]

_SHAPE_METHODS = ("size", "dim", "numel", "stride")


def forward_order(network: Network) -> list[str]:
    """Return the paths of the modules that hold parameters or normalise, in forward order.

    Raises:
        ConfigError: if the order is not declared and tracing finds branches, a reused
            layer, or code it cannot follow; or if a declared layer does not exist.
    """
    modules = dict(network.module.named_modules())
    own = getattr(network.module, "forward_order", None)
    declared = network.order if network.order is not None else own() if own is not None else None
    if declared is not None:
        names = list(declared)
        for name in names:
            if name not in modules:
                raise ConfigError(f"{network.name}: declared order names no module {name!r}")
        return names
    if _is_chain(network.module) and not _reuses(network.module):
        return [name for name, m in modules.items() if _counts(m)]
    return _traced(network, modules)


def _counts(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or next(module.parameters(recurse=False), None) is not None


def _is_chain(module: nn.Module) -> bool:
    if type(module).forward is nn.Sequential.forward:
        return all(_is_chain(child) for child in module.children())
    known = type(module).__module__.startswith("torch.nn.modules")
    return known and next(module.children(), None) is None


def _reuses(module: nn.Module) -> bool:
    return len(list(module.named_modules(remove_duplicate=False))) > len(list(module.modules()))


class _Tracer(torch.fx.Tracer):
    """Keeps layers that declare their own Blocks whole, as torch's own are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one node of the graph."""
        return hasattr(m, "block_specs") or super().is_leaf_module(m, module_qualified_name)


def _traced(network: Network, modules: dict[str, nn.Module]) -> list[str]:
    remedy = "pass order=[...] to its Network to declare the forward order"
    try:
        graph = _Tracer().trace(network.module)
    except (TraceError, TypeError, RuntimeError, AttributeError) as error:
        raise ConfigError(f"{network.name} could not be traced ({error}): {remedy}") from error
    order: list[str] = []
    data: dict[torch.fx.Node, None] = {}  # what depends on the input, in order
    for node in graph.nodes:
        sources = [n for n in node.all_input_nodes if n in data]
        if node.op != "output" and len(sources) > 1:
            names = ", ".join(n.name for n in sources)
            raise ConfigError(f"{network.name} branches: {node.name} joins {names}; {remedy}")
        if node.op == "placeholder" or (sources and not _asks_shape(node)):
            data[node] = None
        if node.op == "call_module" and _counts(modules[str(node.target)]):
            if str(node.target) in order:
                raise ConfigError(f"{network.name} uses {node.target} twice; {remedy}")
            order.append(str(node.target))
    for node in data:
        users = [user.name for user in node.users if user in data and user.op != "output"]
        if len(users) > 1:
            raise ConfigError(
                f"{network.name} branches: {node.name} feeds {', '.join(users)}; {remedy}"
            )
    return order


def _asks_shape(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _SHAPE_METHODS
    return node.op == "call_function" and node.target is getattr
