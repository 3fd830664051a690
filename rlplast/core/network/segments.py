"""Chains inside a network that branches: where a layer's scale is taken out again."""

import operator
from collections.abc import Callable, Sequence

import torch
from torch import nn

from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.trace import (
    DROPPING,
    POOLING,
    RESHAPING,
    UNTRACEABLE,
    asks_shape,
    is_norm,
    keeps_scale,
    operation,
    traced,
)

__all__ = ["mixes_scales", "segments"]

# What gives c·f(x) for c·x, c > 0, by the name of the operation; and nonlinearities of units.
_KEEPS_SCALE = POOLING | DROPPING | RESHAPING | {"relu", "leakyrelu", "prelu", "identity"}
_KEEPS_SCALE |= {"mean", "sum", "transpose", "permute", "contiguous", "squeeze", "unsqueeze"}
_KEEPS_SCALE |= {"getitem", "unflatten", "float", "double", "to", "clone", "neg", "abs"}
_BY_A_NUMBER = (operator.mul, operator.truediv, torch.mul, torch.div)
_ACTIVATIONS = ("linear", "relu", "leaky_relu", "prelu", "identity")


def segments(
    module: nn.Module, passes: Callable[[str], bool]
) -> list[tuple[list[str], str | None]]:
    """Return runs of layers in forward order; none if the module cannot be traced.

    Each layer may be scaled without changing what the network computes, up to one factor of its
    outputs: what one gives goes to the next one alone, through operations that keep its scale.
    After the last one comes a norm, which takes the scale out, or the network's output (None).
    `passes` says whether a layer gives c·y for c·x once its bias is scaled too.
    """
    modules = dict(module.named_modules())
    try:
        graph = traced(module)
    except UNTRACEABLE:
        return []
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    read = {str(n.target).rpartition(".")[0] for n in graph.nodes if n.op == "get_attr"}

    def layer(node: torch.fx.Node) -> bool:
        path = str(node.target)
        single = node.op == "call_module" and calls.count(path) == 1 and path not in read
        known = single and (passes(path) or is_norm(modules[path]))
        return known and keeps_scale(modules[path])

    nodes = [node for node in graph.nodes if layer(node)]
    after: dict[torch.fx.Node, torch.fx.Node | None] = {}  # None: the outputs
    for node in reversed(nodes):
        end = _end(node, modules, layer)
        if end is None:
            continue
        if end.op == "output":
            after[node] = None
        elif is_norm(modules[str(end.target)]) or end in after:
            after[node] = end
    runs: list[tuple[list[str], str | None]] = []
    first = after.keys() - after.values()
    for node in (n for n in nodes if n in first):
        run: list[str] = []
        ahead: torch.fx.Node | None = node
        while ahead is not None and ahead in after:
            run.append(str(ahead.target))
            ahead = after[ahead]
        runs.append((run, None if ahead is None else str(ahead.target)))
    return runs


def mixes_scales(network: Network, blocks: Sequence[Block]) -> str | None:
    """Return what gives no c·f(x) for c·x behind a scaled layer of a chain, if anything does."""
    scaled = {block.path for block in blocks if block.role in ("weight", "scale")}
    for group in network.units().groups:
        if group.point and group.point.path in scaled and group.nonlinearity not in _ACTIVATIONS:
            return f"{group.nonlinearity}, after {network.name}.{group.point.path},"
    modules = dict(network.module.named_modules())
    known = {b.path for b in network.blocks if b.kind in ("linear", "conv")}
    try:
        graph = traced(network.module)
    except UNTRACEABLE:  # its order is declared
        return None
    behind: set[torch.fx.Node] = set()
    for node in graph.nodes:
        path = str(node.target) if node.op == "call_module" else None
        reads = not behind.isdisjoint(node.all_input_nodes) and not asks_shape(node)
        if path in known and (reads or path in scaled) and not keeps_scale(modules[path]):
            return f"{network.name}.{path}, a {type(modules[path]).__name__},"
        if path in scaled or (reads and path in known):
            behind.add(node)
        elif reads and node.op != "output" and not (path and is_norm(modules[path])):
            if not _keeps_scale(node, modules):
                return f"{network.name}.{path}" if path else str(node.name)
            behind.add(node)
    return None


def _end(
    node: torch.fx.Node, modules: dict[str, nn.Module], layer: Callable[[torch.fx.Node], bool]
) -> torch.fx.Node | None:
    """Return the layer or output that alone reads a node's output up to its scale, else None."""
    while True:
        users = [user for user in node.users if not asks_shape(user)]
        if len(users) != 1:
            return None
        (user,) = users
        data = [n for n in user.all_input_nodes if not asks_shape(n)]
        if user.op == "output":
            return user if user.args[0] is node else None  # else outputs of several scales
        if data == [node] and layer(user):
            return user
        if data != [node] or not _keeps_scale(user, modules):
            return None
        node = user


def _keeps_scale(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.target is getattr:
        return node.args[1] in ("mT", "T")
    if node.target in _BY_A_NUMBER:
        return not all(isinstance(arg, torch.fx.Node) for arg in node.args)
    module = modules[str(node.target)] if node.op == "call_module" else None
    return isinstance(module, nn.PReLU) or operation(node, module) in _KEEPS_SCALE
