"""Chains inside a network that branches: where a layer's scale is taken out again."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.fx import Node

from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.trace import (
    UNTRACEABLE,
    Traced,
    asks_shape,
    data_inputs,
    data_users,
    in_both_modes,
    is_norm,
    labelled,
    name_of,
)

__all__ = ["mixes_scales", "segments"]

_LAYOUT = {"flatten", "reshape", "view", "getitem", "transpose", "permute", "squeeze", "unsqueeze"}
_LAYOUT |= {"unflatten", "to"}  # what these name as sizes fits no trial
_ACTIVATIONS = ("linear", "relu", "leaky_relu", "prelu", "identity")


def segments(
    module: nn.Module, passes: Callable[[str], bool]
) -> list[tuple[list[str], str | None]]:
    """Return runs of layers in forward order, alike in both modes; none if it cannot be traced.

    Each layer may be scaled without changing what the network computes, up to one factor of its
    outputs: what one gives goes to the next one alone, through operations that keep its scale.
    After the last one comes a norm, which takes the scale out, or the network's output (None).
    `passes` says whether a layer gives c·y for c·x once its bias is scaled too.
    """
    training, evaluation = in_both_modes(module, lambda: _segments(module, passes))
    return [run for run in training if run in evaluation]


def _segments(
    module: nn.Module, passes: Callable[[str], bool]
) -> list[tuple[list[str], str | None]]:
    try:
        traced = Traced(module)
    except UNTRACEABLE:
        return []

    def layer(node: Node) -> bool:
        path, called = traced.path(node), traced.called(node)
        single = traced.calls[path] == 1 and path not in traced.read
        return called is not None and single and (passes(path) or is_norm(called))

    runs: dict[Node, tuple[list[str], str | None]] = {}  # by their first layer
    for node in reversed([node for node in traced.nodes if layer(node)]):
        end = _end(node, traced, layer)
        if end is None:
            continue
        called, path = traced.called(end), traced.path(node)
        if end in runs:
            run, norm = runs.pop(end)
            runs[node] = ([path, *run], norm)
        elif called is None or is_norm(called):
            runs[node] = ([path], called and traced.path(end))
    return list(reversed(runs.values()))


def mixes_scales(network: Network, blocks: Sequence[Block]) -> str | None:
    """Return what gives no c·f(x) for c·x behind a scaled layer of a chain, if anything does."""
    scaled = {block.path for block in blocks if block.role in ("weight", "scale")}
    for group in network.units().groups:
        if group.point and group.point.path in scaled and group.nonlinearity not in _ACTIVATIONS:
            return f"{group.nonlinearity}, after {network.name}.{group.point.path},"
    known = {b.path for b in network.blocks if b.kind in ("linear", "conv")}
    try:
        traced = Traced(network.module)
    except UNTRACEABLE:  # its order is declared
        return None
    behind: set[Node] = set()
    for node in traced.nodes[:-1]:  # the last one is the output
        layer, path = traced.called(node), traced.path(node)
        reads = not behind.isdisjoint(node.all_input_nodes) and not asks_shape(node)
        if layer is not None and (path in scaled or (reads and path in known)):
            behind.add(node)
        elif reads and not (layer is not None and is_norm(layer)):
            if not _keeps_scale(node, traced):
                return node.name if layer is None else f"{network.name}.{path}"
            behind.add(node)
    return None


def _end(node: Node, traced: Traced, layer: Callable[[Node], bool]) -> Node | None:
    """Return the layer or output that alone reads a node's output up to its scale, else None."""
    while True:
        users = data_users(node)
        if len(users) != 1:
            return None
        (user,) = users
        if user.op == "output":
            return user if user.args[0] is node else None  # else outputs of several scales
        if data_inputs(user) != [node]:
            return None
        if layer(user):
            return user
        if not _keeps_scale(user, traced):
            return None
        node = user


def _keeps_scale(node: Node, traced: Traced) -> bool:
    """Whether a node gives c·f(x) for c·x, c > 0, as tried."""
    if name_of(traced.called(node) or node.target) in _LAYOUT:
        return True
    step = traced.step(node)
    if step is None:
        return False
    for space in (0, 1, 2, 3):
        x = torch.linspace(-2, 3, labelled(space).numel()).view(labelled(space).shape)
        try:
            return torch.allclose(step(3 * x), 3 * step(x), 1e-4, 1e-6)
        except Exception:  # it takes other shapes
            continue
    return False
