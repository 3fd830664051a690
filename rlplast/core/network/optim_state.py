"""What an optimizer remembers of a parameter: found by identity, zeroed in place.

State is never popped or replaced, so captured graphs, fused optimizers and other
holders of the tensors stay valid. An optimizer without a row in `RULES` raises.

A zeroed state is a fresh one for Adam, AdamW, Muon and RMSprop. For SGD it is a momentum
buffer of zeros, which with ``dampening=d`` is not quite an absent one: the first update
after it moves by (1 − d)·lr·g where a new optimizer moves by lr·g.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer, RMSprop

from rlplast.core.errors import DamagedFile, UnsupportedOptimizer
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network

__all__ = [
    "RULES",
    "StateRule",
    "allocate",
    "always",
    "load_optimizer_tensors",
    "moments",
    "optimizer_tensors",
    "zero",
    "zero_all",
]

# Name of a state tensor → whether the options of a parameter group call for it.
StateRule = Mapping[str, Callable[[Mapping[str, Any]], Any]]


def always(group: Mapping[str, Any]) -> bool:
    """Say that an optimizer keeps a state tensor whatever its options are."""
    return True


_ADAM: StateRule = {
    "step": always,
    "exp_avg": always,
    "exp_avg_sq": always,
    "max_exp_avg_sq": itemgetter("amsgrad"),
}
RULES: dict[type[Optimizer], StateRule] = {
    Adam: _ADAM,
    AdamW: _ADAM,
    Muon: {"momentum_buffer": always},
    RMSprop: {
        "step": always,
        "square_avg": always,
        "momentum_buffer": itemgetter("momentum"),
        "grad_avg": itemgetter("centered"),
    },
    SGD: {"momentum_buffer": itemgetter("momentum")},
}


def _rule(optimizer: Optimizer) -> StateRule:
    rule = RULES.get(type(optimizer))
    if rule is None:
        allowed = ", ".join(sorted(o.__name__ for o in RULES))
        raise UnsupportedOptimizer(
            f"optimizer {type(optimizer).__name__} has no state rule: allowed are {allowed}; "
            "use the optimizer policy 'keep', or register it with `rlplast.optimizer`"
        )
    return rule


def moments(network: Network, param: Tensor) -> dict[str, Tensor]:
    """Return the state tensors of `param` by name; empty before its first update.

    Raises:
        UnsupportedOptimizer: for an optimizer, or an entry of its state, without a rule.
    """
    found: dict[str, Tensor] = {}
    for optimizer in network.optimizers:
        rule = _rule(optimizer)
        for name, value in optimizer.state.get(param, {}).items():
            if value is None:
                continue
            if name not in rule or not isinstance(value, Tensor):
                raise UnsupportedOptimizer(
                    f"{type(optimizer).__name__} keeps {name!r} ({type(value).__name__}): "
                    f"known are {', '.join(sorted(rule))} as tensors"
                )
            found[name] = value
    return found


@torch.no_grad()
def zero(network: Network, params: Iterable[Tensor]) -> None:
    """Zero everything the optimizers remember of `params`, ``step`` included, in place."""
    tensors = [t for p in params for t in moments(network, p).values()]
    if tensors:
        torch._foreach_zero_(tensors)


def zero_all(network: Network) -> None:
    """Zero everything the optimizers remember of a network, as a new optimizer would begin."""
    zero(network, {id(b.param): b.param for b in network.trainable()}.values())


def allocate(network: Network, blocks: Iterable[Block] | None = None) -> None:
    """Create the state an optimizer would create at its first update, as zeros.

    Used before state is loaded, and before an update is captured in a graph. Existing
    state is left as it is.

    Args:
        network: the network whose optimizers are prepared.
        blocks: whose state; default: of every trainable parameter.
    """
    groups = [(o, group) for o in network.optimizers for group in o.param_groups]
    owners = {id(p): (o, group) for o, group in groups for p in group["params"]}
    for block in network.trainable() if blocks is None else blocks:
        if id(block.param) not in owners:
            continue
        optimizer, group = owners[id(block.param)]
        state = optimizer.state[block.param]
        for name, kept in _rule(optimizer).items():
            if state.get(name) is not None or not kept(group):
                continue
            if name == "step":
                on_device = group.get("capturable") or group.get("fused")
                device = block.param.device if on_device else "cpu"
                state[name] = torch.zeros((), dtype=torch.float32, device=device)
            else:
                state[name] = torch.zeros_like(
                    block.param.detach(), memory_format=torch.preserve_format
                )


def _entries(network: Network) -> Iterator[tuple[str, Block, str, Tensor]]:
    for block in network.trainable():
        for name, tensor in moments(network, block.param).items():
            view = tensor if tensor.ndim == 0 and name == "step" else block.like(tensor)
            yield f"{network.qualified(block)}:{name}", block, name, view


def optimizer_tensors(network: Network) -> dict[str, Tensor]:
    """Return all state by ``<block>:<entry>``, such as ``q.fc.weight:exp_avg``."""
    return {key: view for key, _, _, view in _entries(network)}


@torch.no_grad()
def load_optimizer_tensors(network: Network, tensors: dict[str, Tensor]) -> None:
    """Copy state saved by `optimizer_tensors` in, by name, into the parameters' own layout.

    State of a parameter that had not yet been updated is absent and stays absent; where
    this optimizer has some already, it is zeroed.

    Raises:
        DamagedFile: if the saved state of a parameter lacks an entry.
    """
    saved = {key.rpartition(":")[0] for key in tensors}
    updated = {b for b in network.trainable() if network.qualified(b) in saved}
    allocate(network, updated)
    for key, block, name, view in _entries(network):
        if block not in updated:
            view.zero_()
        elif key in tensors:
            view.copy_(tensors[key])
        else:
            raise DamagedFile(
                f"saved optimizer state has no {name!r} of {network.qualified(block)}: it is of "
                "another optimizer"
            )
