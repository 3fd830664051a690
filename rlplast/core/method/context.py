"""Context: what a method may read, and the source it comes from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments
from rlplast.core.network.units import UnitGroup
from rlplast.core.rng import torch_stream

__all__ = ["READS", "Activations", "Context"]

READS = ("activations", "gradients", "moments", "batches")
Activations = Mapping[str, Tensor]


@dataclass(frozen=True)
class Context:
    """What a method may read; it writes nothing.

    Attributes:
        network: the network to plan for.
        blocks: its Blocks inside the firing's scope.
        clock: the run's clock.
        due_count: how many due points this firing stands for.
        seed: of the hook's draws in this network; equal at every firing.
        stream: returns the firing's own generator, always from its beginning.
        inside: whether this is inside an update, where nothing may wait for a device.
        reads: what the method declared that it reads.
        readings: where `activations`, `gradients` and `batches` come from.
        loss: the loss that a term is added to, detached; None where there is none.
        owner: the network that `network` follows, for a firing with followers ``same_edit``.
    """

    network: Network
    blocks: tuple[Block, ...]
    clock: Clock = field(default_factory=Clock)
    due_count: int = 1
    seed: int = 0
    stream: Callable[[], torch.Generator] = lambda: torch_stream(0, "plan")
    inside: bool = False
    reads: tuple[str, ...] = ()
    readings: Any = None
    loss: Tensor | None = None
    owner: Network | None = None

    @property
    def units(self) -> tuple[UnitGroup, ...]:
        """The groups of units whose layer is in scope."""
        # Not cached here: before Python 3.12 that takes a lock, which no compiler follows.
        return self.network.units_in(self.blocks) if self.owner is None else self._owners_units

    @cached_property
    def _owners_units(self) -> tuple[UnitGroup, ...]:
        owner = self.owner or self.network
        names = {b.name: b for b in self.network.blocks}
        chosen = {b.name for b in self.blocks}
        groups = owner.units_in(owner.select(lambda b: b.name in chosen))
        return tuple(group.of(names) for group in groups)

    @property
    def activations(self) -> Activations:
        """Activations after the nonlinearity, (samples, units, …), by name of their units.

        They are those of the firing's probe batch; inside an update, of its own forward pass.
        """
        return self._readings("activations").activations

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """Gradients of the network's loss, by Block name: on the probe, or of this update."""
        return self._readings("gradients").gradients

    def moments(self, block: Block) -> dict[str, Tensor]:
        """Return the optimizer's state of a Block, in the Block's layout; edits may write it.

        State of a tensor as a whole, such as ``step``, is left out. Empty before the first update.
        """
        self._check("moments")
        state = moments(self.network, block.param, whole=False)
        return {name: block.like(t) for name, t in state.items()}

    def batches(self, count: int | None = None, size: int = 256) -> Iterator[Any]:
        """Yield `count` batches of the training data or replay, of the firing's own stream.

        Without a count they are one pass over all data of now.
        """
        return self._readings("batches").batches(count, size)

    def gradients_on(self, batch: Any, train: bool = False) -> Mapping[str, Tensor]:
        """Return gradients of the network's loss on one of `batches`, by Block name.

        With `train` in training mode, without moving running statistics.
        """
        return self._readings("batches").gradients_on(batch, train)

    def outputs(self, batch: Any, module: nn.Module | None = None) -> Tensor:
        """Return the network's outputs on one of `batches`, (samples, outputs…).

        A `module` is called instead of the network's own, such as a `WithWeights` of it.
        """
        return self._readings("batches").outputs(batch, module)

    def _check(self, what: str) -> None:
        if what not in self.reads:
            raise ConfigError(
                f"a plan reads {what!r} and its method does not say so: allowed are {self.reads}; "
                f'put it into the class variable `reads`, as in reads = ("{what}",)'
            )

    def _readings(self, what: str) -> Any:
        self._check(what)
        if self.readings is None:
            raise ConfigError(f"nothing to read {what!r} from: pass probe= to Hooks or Penalties")
        return self.readings
