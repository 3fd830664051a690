"""A network as it was, kept in a method's state, for terms that compare with it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlplast.core.errors import BadWeights
from rlplast.core.method.method import Assign, Edit, Network, State
from rlplast.core.network.record import WithWeights

__all__ = ["past_self", "remember", "room"]

_PAST = "past/"  # what the names of its tensors begin with


def room(network: Network) -> State:
    """Return zeros like each parameter and saved buffer, under names that begin with past/."""
    return {_PAST + name: torch.zeros_like(t) for name, t in _tensors(network).items()}


def remember(method: str, network: Network, state: Mapping[str, Tensor]) -> list[Edit]:
    """Return edits that keep the network as it is now; raise `BadWeights` if it is not finite."""
    bad = [network.qualified(b) for b in network.blocks if not bool(b.view.isfinite().all())]
    if bad:
        raise BadWeights(f"{method}: {', '.join(bad)}: not finite, hence no outputs to keep to")
    return [Assign(state[_PAST + name], t.clone()) for name, t in _tensors(network).items()]


def past_self(network: Network, state: Mapping[str, Tensor]) -> WithWeights:
    """Return a module that computes with the weights and buffers that were kept."""
    past = {n.removeprefix(_PAST): t for n, t in state.items() if n.startswith(_PAST)}
    return WithWeights(network.module, past)


def _tensors(network: Network) -> dict[str, Tensor]:
    """Return a network's parameters and saved buffers by name, detached; tied ones once."""
    module, saved = network.module, network.module.state_dict().keys()
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if name in saved}
