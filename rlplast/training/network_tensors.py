"""A network's tensors by name, as checkpoints store them, optimizer and followers included."""

import torch
from torch import Tensor

from rlplast.core.errors import DamagedFile
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import load_optimizer_tensors, optimizer_tensors

__all__ = ["INITIAL", "aliases", "first_not_finite", "load_network_tensors", "network_tensors"]

INITIAL = "@initial"


def network_tensors(network: Network) -> dict[str, Tensor]:
    """Return a network's tensors by name: weights, θ0, followers, optimizer state.

    Names are ``q.fc.weight``, ``q.fc.weight@initial``, ``q.target.fc.weight`` and
    ``q.fc.weight:exp_avg``; a tied tensor appears once, see `aliases`.
    """
    tensors: dict[str, Tensor] = {}
    for block in network.blocks:
        name = network.qualified(block)
        tensors[name] = block.view
        tensors[f"{name}{INITIAL}"] = network.initial[block.name]
    for follower in network.followers.values():
        tensors.update({follower.qualified(b): b.view for b in follower.blocks})
    return tensors | optimizer_tensors(network)


def aliases(network: Network) -> dict[str, str]:
    """Return ``{other name: name stored}`` of a network's tied tensors."""
    return {
        f"{network.name}.{alias}": network.qualified(block)
        for block in network.blocks
        for alias in block.aliases
    }


@torch.no_grad()
def load_network_tensors(network: Network, tensors: dict[str, Tensor]) -> None:
    """Copy tensors of `network_tensors` into the network's memory; DamagedFile if one misfits."""

    def copy(name: str, into: Tensor) -> None:
        if name not in tensors:
            raise DamagedFile(f"checkpoint has no tensor {name!r}: it is of another network")
        if tensors[name].shape != into.shape:
            raise DamagedFile(
                f"checkpoint tensor {name!r} has shape {tuple(tensors[name].shape)}, the network "
                f"{tuple(into.shape)}"
            )
        into.copy_(tensors[name])

    for block in network.blocks:
        name = network.qualified(block)
        copy(name, block.view)
        copy(f"{name}{INITIAL}", network.initial[block.name])
    for follower in network.followers.values():
        for block in follower.blocks:
            copy(follower.qualified(block), block.view)
    load_optimizer_tensors(network, tensors)
    own = {n for n in tensors if n.startswith((f"{network.name}.", f"{network.name}["))}
    left = sorted(own - set(network_tensors(network)))
    if left:
        raise DamagedFile(
            f"checkpoint has {left[0]!r}, {len(left)} tensors in all, of which network "
            f"{network.name!r} has none: it is of another network (were layers taken out?)"
        )


def first_not_finite(network: Network) -> str | None:
    """Return the name of the first Block with an entry that is not finite, or None."""
    for block in network.blocks:
        view = block.view.detach()
        if view.is_floating_point() and view.numel() > 0:
            if not all(bool(end.isfinite()) for end in view.aminmax()):
                return network.qualified(block)
    return None
