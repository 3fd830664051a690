"""Copies of networks outside any trainer, to compare what hooks do to both."""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network


def plain(receipt: Receipt) -> dict[str, Any]:
    row = receipt.row()
    del row["time/seconds"]
    return row


def twin(network: Network) -> Network:
    """A network of copies, outside any trainer."""
    module = copy.deepcopy(network.module)
    parameters = [p for p in module.parameters() if p.requires_grad]
    kind: Any = type(network.optimizers[0]) if network.optimizers else torch.optim.Adam
    found = Network(
        network.name,
        module,
        kind(parameters),
        {name: copy.deepcopy(f.module) for name, f in network.followers.items()},
        init=network.init,
        initial=network.initial,
        order=network.order,
        units=network._given_units,
    )
    for mine, theirs in zip(everyone(found), everyone(network), strict=True):
        mine.blocks = tuple(
            dataclasses.replace(a, spec=b.spec)
            for a, b in zip(mine.blocks, theirs.blocks, strict=True)
        )
    return found


def everyone(network: Network) -> tuple[Network, ...]:
    return network, *network.followers.values()


@torch.no_grad()
def copy_weights(source: dict[str, Network], goal: dict[str, Network]) -> None:
    for name, network in source.items():
        for mine, theirs in zip(everyone(network), everyone(goal[name]), strict=True):
            for a, b in zip(mine.blocks, theirs.blocks, strict=True):
                b.view.copy_(a.view)


def assert_same_weights(one: dict[str, Network], other: dict[str, Network]) -> None:
    for name, network in one.items():
        for mine, theirs in zip(everyone(network), everyone(other[name]), strict=True):
            for a, b in zip(mine.blocks, theirs.blocks, strict=True):
                assert torch.equal(a.view, b.view), (network.name, a.name)


def moments(network: Network) -> dict[str, dict[str, Tensor]]:
    """What the optimizers remember, by name of the parameter."""
    held = {id(b.param): b.name for b in network.blocks}
    return {
        held[id(p)]: {k: v for k, v in state.items() if isinstance(v, Tensor)}
        for optimizer in network.optimizers
        for p, state in optimizer.state.items()
        if id(p) in held
    }


def copy_moments(source: dict[str, Network], goal: dict[str, Network]) -> None:
    for name, network in source.items():
        params = {b.name: b.param for b in goal[name].blocks}
        for key, state in moments(network).items():
            copied = {k: v.clone() for k, v in state.items()}
            goal[name].optimizers[0].state[params[key]] = copied


def assert_same_moments(one: dict[str, Network], other: dict[str, Network]) -> None:
    for name, network in one.items():
        theirs = moments(other[name])
        for key, state in moments(network).items():
            assert all(torch.equal(v, theirs[key][k]) for k, v in state.items()), (name, key)
