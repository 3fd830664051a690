"""The optimizer's state of a parameter: found by identity, reset in place.

State is never popped or replaced, so captured graphs, fused optimizers and other holders of the
tensors stay valid. It is of entries, laid out as the parameter, and zero as new; of a parameter as
a whole (`Whole`, such as ``step``); or of all parameters of an optimizer (`shared`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer, RMSprop

from rlplast.core.errors import DamagedFile, UnsupportedOptimizer
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network

__all__ = [
    "ABOUT_KEEP",
    "DRAWN",
    "RULES",
    "StateRule",
    "Whole",
    "allocate",
    "always",
    "averages",
    "load_optimizer_tensors",
    "moments",
    "optimizer_tensors",
    "share",
    "shared",
    "without_rule",
    "zero",
    "zero_all",
]

# Whether the policy keep suits an optimizer without a rule.
ABOUT_KEEP = (
    "the optimizer policy 'keep' leaves its state as it is, which is wrong for one that keeps "
    "weights there, as schedule-free ones and Lookahead do: it would undo the edit"
)
# Of what parameters share, how many updates have drawn noise: no reset starts a stream again.
DRAWN = "drawn"
_SHARED = "shared"  # key of an optimizer's state, among its parameters


@dataclass(frozen=True)
class Whole:
    """A state tensor of a parameter as a whole; `new` is (parameter, its group's options) → it."""

    new: Callable[[Tensor, Mapping[str, Any]], Tensor]


# Name of a state tensor → whether the options of a parameter group call for it, or a `Whole`.
StateRule = Mapping[str, Callable[[Mapping[str, Any]], Any] | Whole]


def always(group: Mapping[str, Any]) -> bool:
    """Say that an optimizer keeps a state tensor whatever its options are."""
    return True


def _step(param: Tensor, group: Mapping[str, Any]) -> Tensor:
    on_device = group.get("capturable") or group.get("fused")
    return torch.zeros((), dtype=torch.float32, device=param.device if on_device else "cpu")


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
    # Zeroed with dampening d, SGD first moves by (1 - d)·lr·g; a new one by lr·g.
    SGD: {"momentum_buffer": itemgetter("momentum")},
}


def _rule(optimizer: Optimizer) -> StateRule:
    rule = RULES.get(type(optimizer))
    inner = getattr(optimizer, "optimizer", None)  # of a wrapper, as Accelerate's
    if rule is None and isinstance(inner, Optimizer) and inner.state is optimizer.state:
        return _rule(inner)
    if rule is None:
        allowed = ", ".join(sorted(o.__name__ for o in RULES))
        raise UnsupportedOptimizer(
            f"optimizer {type(optimizer).__name__} has no state rule: allowed are {allowed}; or "
            f"say what state it has with `@rlplast.optimizer(…, state={{{type(optimizer).__name__}:"
            f" {{…}}}})`; {ABOUT_KEEP}"
        )
    base = getattr(optimizer, "base", None)  # of an optimizer that wraps another
    return rule if base is None else {**_rule(base), **rule}


def without_rule(network: Network) -> list[Optimizer]:
    """Return the optimizers of a network of which it is not known what they keep."""
    found = []
    for optimizer in network.optimizers:
        try:
            _rule(optimizer)
        except UnsupportedOptimizer:
            found.append(optimizer)
    return found


def _whole(rule: StateRule, name: str) -> Whole | None:
    spec = rule[name]
    return spec if isinstance(spec, Whole) else Whole(_step) if name == "step" else None


def share(optimizer: Optimizer, **tensors: Tensor) -> None:
    """Give a new optimizer state that all its parameters share; as new it is zero."""
    state: Any = optimizer.state
    state[_SHARED] = tensors


def shared(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the state that all parameters of an optimizer share."""
    state: Any = optimizer.state
    return state.get(_SHARED, {})


def moments(network: Network, param: Tensor, whole: bool = True) -> dict[str, Tensor]:
    """Return the state tensors of `param` by name; without `whole` those with its layout alone.

    It is empty before the first update. Optimizers and entries without a rule are refused.
    """
    state: dict[str, Tensor] = {}
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
            if whole or _whole(rule, name) is None:
                state[name] = value
    return state


@torch.no_grad()
def zero(network: Network, params: Iterable[Tensor]) -> None:
    """Zero everything the optimizers remember of `params`, in place; a `Whole` becomes as new."""
    owners, tensors = _owners(network), []
    for param in params:
        for name, tensor in moments(network, param).items():
            optimizer, group = owners[id(param)]
            whole = _whole(_rule(optimizer), name)
            if whole is None:
                tensors.append(tensor)
            else:
                tensor.copy_(whole.new(param, group))
    if tensors:
        torch._foreach_zero_(tensors)


def zero_all(network: Network) -> None:
    """Zero all state of a network, as a new optimizer would begin; noise goes on where it was."""
    zero(network, {id(b.param): b.param for b in network.trainable()}.values())
    for _, name, tensor in _shared(network):
        if name != DRAWN:
            tensor.zero_()


def _owners(network: Network) -> dict[int, tuple[Optimizer, Mapping[str, Any]]]:
    groups = [(o, group) for o in network.optimizers for group in o.param_groups]
    return {id(p): (o, group) for o, group in groups for p in group["params"]}


def _shared(network: Network) -> Iterator[tuple[str, str, Tensor]]:
    for number, optimizer in enumerate(network.optimizers):
        for name, tensor in shared(optimizer).items():
            yield f"{network.name}.optimizer{number}:{name}", name, tensor


@torch.no_grad()
def averages(network: Network) -> dict[Block, Tensor]:
    """Return evaluations' weights, of optimizers with ``evaluation_weights()``."""
    pairs = [p for o in network.optimizers for p in getattr(o, "evaluation_weights", list)()]
    values = {id(param): value for param, value in pairs}
    blocks = [block for block in network.trainable() if id(block.param) in values]
    return {block: block.like(values[id(block.param)]) for block in blocks}


def allocate(network: Network, blocks: Iterable[Block] | None = None) -> None:
    """Create, as new, what optimizers lack of their state; by default of all that trains."""
    owners = _owners(network)
    for block in network.trainable() if blocks is None else blocks:
        if id(block.param) not in owners:
            continue
        optimizer, group = owners[id(block.param)]
        state, rule = optimizer.state[block.param], _rule(optimizer)
        for name, kept in rule.items():
            whole = _whole(rule, name)
            if state.get(name) is not None:
                continue
            if whole is not None:
                state[name] = whole.new(block.param, group)
            elif kept(group):  # pyright: ignore[reportCallIssue]
                state[name] = torch.zeros_like(
                    block.param.detach(), memory_format=torch.preserve_format
                )


def _entries(network: Network) -> Iterator[tuple[str, Block, str, Tensor]]:
    for block in network.trainable():
        entries = moments(network, block.param, whole=False)
        for name, tensor in moments(network, block.param).items():
            view = block.like(tensor) if name in entries else tensor
            yield f"{network.qualified(block)}:{name}", block, name, view


def optimizer_tensors(network: Network) -> dict[str, Tensor]:
    """Return all state: ``q.fc.weight:exp_avg``, and ``q.optimizer0:<name>`` of what is shared."""
    entries = {key: view for key, _, _, view in _entries(network)}
    return entries | {key: tensor for key, _, tensor in _shared(network)}


@torch.no_grad()
def load_optimizer_tensors(network: Network, tensors: dict[str, Tensor]) -> None:
    """Copy state saved by `optimizer_tensors` in, by name, into the parameters' own layout.

    State of a parameter that had not been updated stays absent, or is made as new. A DamagedFile is
    raised where other state lacks an entry.
    """
    saved = {key.rpartition(":")[0] for key in tensors}
    updated = {b for b in network.trainable() if network.qualified(b) in saved}
    allocate(network, updated)
    zero(network, {id(b.param): b.param for b in network.trainable() if b not in updated}.values())
    entries = [(k, n, network.qualified(b), v) for k, b, n, v in _entries(network) if b in updated]
    common = [(k, n, k.rpartition(":")[0], t) for k, n, t in _shared(network)]
    for key, name, of, view in entries + common:
        if key not in tensors:
            raise DamagedFile(
                f"saved optimizer state has no {name!r} of {of}: it is of another optimizer"
            )
        view.copy_(tensors[key])
