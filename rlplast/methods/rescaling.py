"""What methods share that multiply layers, so that outputs keep their proportion."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.method import Block, Edit, Network, Scale
from rlplast.core.network.blocks import NORMS
from rlplast.core.network.order import forward_order, heads
from rlplast.core.network.segments import mixes_scales
from rlplast.metrics.ranks import at_least_float32

__all__ = [
    "NORMALISED_INPUT",
    "Layer",
    "Order",
    "blocks_by_member",
    "chain_of",
    "chains_of",
    "check_followed",
    "norms_of",
    "order_of",
    "place_of",
    "rescaled",
    "weight_of",
]

NORMALISED_INPUT = "normalised_input"  # attribute of layers that normalise what they read


@dataclass(frozen=True)
class Layer:
    """One place in the forward order."""

    weight: Block | None  # W, a norm layer's scale; None if there is none to edit
    bias: Block | None  # b, a norm layer's shift; None if there is none to edit
    statistics: tuple[Block, ...]  # a BatchNorm's running mean and variance
    is_norm: bool  # whether it normalises, with parameters or without, or what it reads
    precedes_norm: bool  # whether a norm layer comes later
    beside: bool  # whether it reads the same as the layer before it here: heads side by side


@dataclass(frozen=True)
class Order:
    """The forward order of one network."""

    chains: list[list[Layer]]  # one per member of a stacked network
    weights: list[Block]  # every W, chain by chain
    classifier: Tensor  # per W, 1 if it belongs to the fully-connected classifier, else 0
    pairs: Tensor | None = None  # indices of two W each whose product alone matters, (pairs, 2)


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return Frobenius norms, in at least float32 (bf16 would round them to three digits)."""
    return torch.stack(torch._foreach_norm([at_least_float32(t) for t in tensors]))


def blocks_by_member(
    network: Network, blocks: Sequence[Block], method: str
) -> dict[int | None, dict[str, dict[str, Block]]]:
    """Return the Blocks with a place in the order by member, layer and role; refuse tied ones."""
    by_member: dict[int | None, dict[str, dict[str, Block]]] = {}
    for block in blocks:
        if block.aliases:
            raise ConfigError(
                f"{method}: {network.qualified(block)} is tied to {', '.join(block.aliases)}: it "
                "has two places in the forward order; leave the tied layer out of the network"
            )
        if block.kind in ("linear", "conv", "norm"):
            role = block.spec.tensor if block.role == "buffer" else block.role
            layers = by_member.setdefault(block.spec.member, {})
            layers.setdefault(place_of(block), {})[role] = block
    return by_member


def chains_of(network: Network, blocks: Sequence[Block], method: str, remedy: str | None) -> Order:
    """Return the order of a network that is a chain, or says in which order its layers come.

    `remedy` says what to do about a part that gives no c·y for c·x; None if that is allowed.

    Raises:
        NothingToEdit: if there is no weight.
        ConfigError: if the network has no such order, or a Block no place in it, or outputs would
            not keep their proportion.
    """
    by_member = blocks_by_member(network, blocks, method)
    nothing = NothingToEdit(
        f"{method} finds no linear, conv or norm layer in network {network.name!r}"
    )
    if not by_member:
        raise nothing
    if None in by_member and len(by_member) > 1:
        name = network.qualified(next(iter(next(iter(by_member[None].values())).values())))
        raise ConfigError(
            f"{method}: {name} is shared by the members of a stacked network: the order branches "
            "there"
        )
    paths = forward_order(network)
    frozen = [b for b in network.blocks if not b.trainable] if network.optimizers else []
    _refuse_left(network, blocks, frozen, paths, method, "is frozen")
    for layers in by_member.values():
        for path, roles in layers.items():
            if path not in paths:
                name = network.qualified(next(iter(roles.values())))
                raise ConfigError(
                    f"{method}: {name} has no place in the forward order {paths}: pass order=[...] "
                    "with every layer to its Network, or freeze a layer that is not used"
                )
    order = [chain_of(layers, paths, network) for layers in by_member.values()]
    if not any(layer.weight is not None for layers in order for layer in layers):
        raise nothing
    mixing = None if remedy is None else mixes_scales(network, blocks)
    if mixing is not None:
        raise ConfigError(
            f"{method}: {mixing} does not give c·y for c·x, and the network would compute "
            f"something else: {remedy}"
        )
    return order_of(order)


def check_followed(
    network: Network, blocks: Sequence[Block], left: Sequence[Block], method: str
) -> None:
    """Raise a `ConfigError` for a bias left out of which the input is scaled.

    A network that branches has no forward order, and `rlplast.methods.swr` checks it.
    """
    try:
        paths = forward_order(network)
    except ConfigError:
        return
    _refuse_left(network, blocks, left, paths, method, "is left out by the hook's layers")


def _refuse_left(
    network: Network,
    blocks: Sequence[Block],
    left: Sequence[Block],
    paths: Sequence[str],
    method: str,
    why: str,
) -> None:
    """Refuse a bias among `left` if a layer in `blocks` scales what it is added to."""
    place = {path: i for i, path in enumerate(paths)}
    modules = dict(network.module.named_modules())
    norms = [place[path] for path in paths if isinstance(modules[path], NORMS)]
    norms += [place[b.path] for b in network.blocks if b.kind == "norm" and b.path in place]
    weights = [b for b in blocks if b.role in ("weight", "scale") and b.path in place]
    inner = [b for b in weights if b.path not in heads(network)]
    for bias in left:
        if bias.role not in ("bias", "shift") or bias.path not in place:
            continue
        end = place[bias.path]
        before = [place[b.path] for b in inner if b.spec.member == bias.spec.member]
        start = max((i for i in before if i < end), default=end)
        if any(b.layer == bias.layer for b in weights):
            start = end
        elif start == end or any(start < norm <= end for norm in norms):
            continue
        raise ConfigError(
            f"{method}: {network.qualified(bias)} {why}: it cannot follow {paths[start]}, and the "
            "network would compute something else; scale both or neither"
        )


def order_of(layers: list[list[Layer]]) -> Order:
    """Return an order of chains."""
    weights = [layer.weight for chain in layers for layer in chain if layer.weight is not None]
    classifier = torch.zeros_like(norms_of([w.view for w in weights]))
    for i, weight in enumerate(weights):  # one by one, so that nothing is copied from the host
        classifier[i].fill_(float(weight.kind == "linear"))
    return Order(layers, weights, classifier)


def place_of(block: Block) -> str:
    """Return the layer of a Block; of a packed one's part, the part."""
    return block.layer if block.spec.part else block.path


def weight_of(roles: Mapping[str, Block]) -> Block | None:
    """Return a layer's weight, or a norm layer's scale."""
    return roles.get("weight", roles.get("scale"))


def chain_of(
    layers: dict[str, dict[str, Block]], paths: list[str], network: Network
) -> list[Layer]:
    """Return the places of some paths, in their order; `layers` has their Blocks by role."""
    modules = dict(network.module.named_modules())
    later_heads = heads(network)[1:]
    places: list[Layer] = []
    for path in reversed(paths):
        roles = layers.get(path, {})
        statistics = [roles[name] for name in ("running_mean", "running_var") if name in roles]
        places.append(
            Layer(
                weight=weight_of(roles),
                bias=roles.get("bias", roles.get("shift")),
                statistics=tuple(statistics),
                is_norm=isinstance(modules[path], NORMS)
                or hasattr(modules[path], NORMALISED_INPUT)
                or any(block.kind == "norm" for block in roles.values()),
                precedes_norm=any(layer.is_norm for layer in places),
                beside=path in later_heads,
            )
        )
    return places[::-1]


def rescaled(
    layers: list[Layer],
    rows: Iterator[tuple[Tensor, Tensor | None]],
    one: Tensor,
    *,
    leaks: bool = False,
    statistics: bool = False,
) -> list[Edit]:
    """Return edits W ← c·W and b ← C·b of one chain, C the product of the factors so far.

    Args:
        layers: the chain.
        rows: c of each weight, and ‖W‖ if known, from where the last chain ended.
        one: 1, on the chain's device.
        leaks: whether C restarts at every layer before the last norm, but not at that norm, as
            SWR's printed algorithm has it; else C restarts at every norm layer.
        statistics: whether a BatchNorm's running mean and variance follow its input.
    """
    edits: list[Edit] = []
    given = cumulative = one  # C of what a layer reads, and of what it gives
    for layer in layers:
        given = cumulative = given if layer.beside else cumulative
        if statistics and layer.statistics:
            mean, variance = layer.statistics
            edits += [Scale(mean, cumulative), Scale(variance, cumulative.square())]
        restarts = layer.precedes_norm if leaks else layer.is_norm
        cumulative = one if restarts else cumulative
        if layer.weight is not None:
            factor, norm = next(rows)
            edits.append(Scale(layer.weight, factor, norm))
            cumulative = factor * cumulative
        if layer.bias is not None:
            edits.append(Scale(layer.bias, cumulative))
    return edits
