"""Which optimizer trains a network: the one that it was given, or by now another."""

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from rlplast.core.network.network import Network

__all__ = ["warn_of_others", "watch"]


def watch(
    networks: Mapping[str, Network], found: Callable[[Optimizer, Network], object]
) -> RemovableHandle:
    """Call `found` before each step of an optimizer that trains a network and is not its own.

    Networks without an optimizer are passed over. The handle that is returned ends it.
    """
    others: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that are none of ours

    def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in others or any(optimizer in n.optimizers for n in networks.values()):
            return
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for network in networks.values():
            if network.optimizers and any(id(block.param) in trained for block in network.blocks):
                if not any(_are_one(held, optimizer) for held in network.optimizers):
                    found(optimizer, network)
                    return
        others.add(optimizer)

    return register_optimizer_step_pre_hook(stepping)


def warn_of_others(networks: Mapping[str, Network]) -> RemovableHandle:
    """Warn once of each optimizer that trains one of the networks and is not its own."""
    warned: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def found(optimizer: Optimizer, network: Network) -> None:
        if optimizer not in warned:
            warned.add(optimizer)
            warnings.warn(
                f"network {network.name!r} is trained by a {type(optimizer).__name__} that its "
                "rlplast.Network does not hold: hooks would reset the state of the old one; say "
                "which one trains, as in network.optimizers = (optimizer,)",
                stacklevel=4,
            )

    return watch(networks, found)


def _are_one(one: Optimizer, other: Optimizer) -> bool:
    groups = {id(group) for group in one.param_groups}
    inside = any(x is other for x in vars(one).values()) or any(
        x is one for x in vars(other).values()
    )
    return inside or any(id(group) in groups for group in other.param_groups)
