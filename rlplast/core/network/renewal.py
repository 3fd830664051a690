"""What became of a module since it was looked at: its layers, their memory, what trains."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block, blocks_of
from rlplast.core.network.memory import check_memory

__all__ = ["Snapshot", "view_anew"]

_REMEDY = "make a new optimizer, rlplast.Network and rlplast.Hooks of the module as it is now"


class Snapshot:
    """The parts of a module, and where each tensor lies and whether it trains."""

    def __init__(self, module: nn.Module) -> None:
        parts = _parts(module)
        parameters = [p for part in parts for p in part._parameters.values() if p is not None]
        buffers = [b for part in parts for b in _buffers(part)]
        # Themselves: no new one can come to lie where an old one was.
        self.trained: list[Any] = [*parts, *parameters]
        self.facts = [_fact(t) for t in parameters]
        self.buffers, self.places = buffers, [(*_fact(t), t.device) for t in buffers]

    def same_layers(self, other: "Snapshot") -> bool:
        """Whether another one has the same parts and parameters, in the same memory."""
        return self.facts == other.facts and _are(self.trained, other.trained)

    def same_buffers(self, other: "Snapshot") -> bool:
        """Whether another one has the same buffers, in the same memory."""
        return self.places == other.places and _are(self.buffers, other.buffers)


def _fact(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return a module and all below it; quicker than ``modules()``, for every update."""
    parts, ahead = [], [module]
    while ahead:
        parts.append(ahead.pop())
        ahead += [child for child in parts[-1]._modules.values() if child is not None]
    return parts


def _buffers(part: nn.Module) -> list[Tensor]:
    transient = part._non_persistent_buffers_set
    return [b for key, b in part._buffers.items() if b is not None and key not in transient]


def view_anew(
    name: str,
    module: nn.Module,
    blocks: Sequence[Block],
    trained: Iterable[Tensor] | None,
) -> None:
    """Have Blocks view the tensors that a module has now, once all are checked.

    Refused are layers that came, went or have another shape, and parameters that train and are not
    among what optimizers hold (`trained`; None without one).
    """
    now = {block.name: block for block in blocks_of(module)}
    check_memory(name, module, list(now.values()))
    known = {block.name for block in blocks}
    for key, new in now.items():
        if new.role != "buffer" and key not in known:
            raise ConfigError(f"{name}.{key} was not there when its Network was made: {_REMEDY}")
    held = None if trained is None else set(map(id, trained))
    for block in blocks:
        new = now.get(block.name)
        if new is None or new.view.shape != block.view.shape:
            what = "gone" if new is None else f"{tuple(new.view.shape)}"
            raise ConfigError(
                f"{name}.{block.name} was {tuple(block.view.shape)} when its Network was made, "
                f"and is {what} now: {_REMEDY}"
            )
        if held is not None and new.trainable and id(new.param) not in held:
            how = "trains" if new.param is block.param else "is another Parameter"
            raise ConfigError(
                f"{name}.{block.name} {how} now, and the optimizer of its Network does not hold "
                f"it: add it by optimizer.add_param_group, or {_REMEDY}"
            )
    for block in blocks:
        block.take(now[block.name])
