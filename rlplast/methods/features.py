"""What layers read or give on a batch, with its gradient, for terms that act on features."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.inside import refuse_low_precision
from rlplast.core.method.method import Block, Method, Network
from rlplast.core.network.order import last_layers
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.units import UnitGroup

__all__ = [
    "OutputTerm",
    "Reading",
    "head_layers",
    "members",
    "read_by_heads",
    "readers",
]


class OutputTerm(Method):
    """A penalty of what all layers make: outputs or features on a batch of its own."""

    reads = ("batches",)

    def covers(self, block: Block) -> bool:
        """Return whether a Block is of a layer; a network of none (a temperature) has no term."""
        return block.kind != "other"

    def check_whole(self, network: Network, blocks: Sequence[Block]) -> None:
        """Refuse a row that leaves layers out, since all make features; and low precision."""
        if len(blocks) < sum(map(self.covers, network.trainable())):
            raise ConfigError(
                f"{self.name} acts on outputs or features of network {network.name!r}, which all "
                "layers make: leave `layers` out of its row"
            )
        for block in blocks:
            refuse_low_precision(network, block)


class Reading(nn.Module):
    """A module that keeps what some of its layers read, or give, in a forward pass.

    Args:
        module: the module.
        layers: of its parts.
        outputs: whether to keep what they give.

    Attributes:
        found: (layer, input) in the order of the pass, an input that several read once, also if
            each scales it for itself; with `outputs` (layer, output).
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[nn.Module], outputs: bool = False
    ) -> None:
        super().__init__()
        self.module = module
        self.found: list[tuple[nn.Module, Tensor]] = []
        self._read, self._outputs = tuple(layers), outputs
        self._raw: list[Tensor] = []  # inputs before hooks of the layers' own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        self.found.clear()
        handles = []
        for layer in self._read:
            if self._outputs:
                handles.append(layer.register_forward_hook(self._keep_output))
            else:
                handles.append(layer.register_forward_pre_hook(self._keep_raw, prepend=True))
                handles.append(layer.register_forward_pre_hook(self._keep))
        try:
            return self.module(*args, **kwargs)
        finally:
            self._raw.clear()
            for handle in handles:
                handle.remove()

    def _keep_raw(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        self._raw.append(args[0])

    def _keep(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        *before, last = self._raw
        if not any(last is tensor for tensor in before):
            self.found.append((layer, args[0]))

    def _keep_output(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.found.append((layer, output))


def head_layers(network: Network, method: str) -> list[nn.Module]:
    """Return the layers that give a network's outputs.

    Raises:
        ConfigError: if there is none, or one is no linear layer; it names `method`.
    """
    modules = dict(network.module.named_modules())
    paths = [path for path in modules if path in last_layers(network)]
    if not paths:
        raise ConfigError(
            f"{method} finds no head in network {network.name!r}, a "
            f"{type(network.module).__name__}: it has no linear layer; name the networks that have "
            "one in `networks`"
        )
    for path in paths:
        if not isinstance(modules[path], nn.Linear | StackedLinear):
            raise ConfigError(
                f"{method}: the head {path} of network {network.name!r} is a "
                f"{type(modules[path]).__name__}: allowed are Linear, StackedLinear"
            )
    return [modules[path] for path in paths]


def read_by_heads(
    network: Network, groups: Sequence[UnitGroup], method: str
) -> dict[nn.Module, list[UnitGroup]]:
    """Return each layer of `head_layers` with those of some hidden units that it reads."""
    modules = dict(network.module.named_modules())
    return {
        head: [g for g in groups if any(modules[p.block.path] is head for p in g.outgoing)]
        for head in head_layers(network, method)
    }


def readers(network: Network, method: str) -> list[nn.Module]:
    """Return the layers that read hidden units, and those of `head_layers`."""
    groups = (group for group in network.units().groups if group.point is not None)
    paths = dict.fromkeys(part.block.path for group in groups for part in group.outgoing)
    layers = [network.module.get_submodule(path) for path in paths]
    return list(dict.fromkeys(layers + head_layers(network, method)))


def members(blocks: Sequence[Block]) -> int:
    """Return how many networks Blocks are of: those of a stack, or 1; shared ones do not count."""
    return max(1, len({b.spec.member for b in blocks if b.spec.member is not None}))
