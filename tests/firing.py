"""One plan on one network, as a firing would write it, and a network of two tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD

from rlplast.core.method import firing
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Edit
from rlplast.core.network.network import Network


def linear() -> tuple[nn.Linear, Network, Block]:
    module = nn.Linear(3, 2)
    network = Network("net", module, SGD(module.parameters(), lr=0.1))
    return module, network, network.blocks[0]


def apply(
    network: Network,
    edits: Sequence[Edit],
    replan: Callable[[Network], Sequence[Edit]] | None = None,
    **options: Any,
) -> Receipt:
    followers = network.followers.values() if replan is not None else ()
    plans = [(f, replan(f)) for f in followers if replan is not None]
    [receipt] = firing.carry_out([firing.Planned(network, edits, plans)], **options)
    return receipt
