"""Activations of forward passes, read by forward hooks."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.units import ActivationPoint

__all__ = ["Keep", "Recorder", "WithWeights", "check_norms", "record"]


class Recorder:
    """Keeps the activations of a network during its forward passes, while it is `on`.

    Of several passes the samples are joined: micro-batches of one update count together. A pass
    that gradient checkpointing repeats counts once. With `training_only` only passes count that
    gradients flow through, while something in the network trains. Compiled code records what was to
    be recorded when it was compiled.
    """

    def __init__(self, network: Network, training_only: bool = False, on: bool = True) -> None:
        names: dict[ActivationPoint, list[str]] = {}
        for name, point in network.units().points().items():
            names.setdefault(point, []).append(name)
        if not names:
            raise NothingToEdit(f"network {network.name!r} has no units with activations")
        self.training_only, self.on = training_only, on
        self._blocks = network.blocks
        self._found: dict[str, list[Tensor]] = {}
        self._forward: set[str] = set()  # names that were seen outside a backward pass
        self._handles = [
            network.module.get_submodule(point.path).register_forward_hook(
                Keep(self, point, at_point)
            )
            for point, at_point in names.items()
        ] + check_norms(network)

    def keep(self, point: ActivationPoint, names: list[str], out: Any, stacked: bool) -> None:
        """Keep the activations at a point, by these names, of a module's output."""
        if not self.on or (self.training_only and not torch.is_grad_enabled()):
            return
        if not torch.compiler.is_compiling():
            if self.training_only and not any(block.trainable for block in self._blocks):
                return  # a loss of another network, for which Lightning's toggle_optimizer froze it
            if torch._C._current_graph_task_id() == -1:
                self._forward.update(names)
            elif names[0] in self._forward:
                return
        with torch.no_grad():
            for name, value in zip(names, point.read(out, stacked), strict=True):
                self._found.setdefault(name, []).append(value)

    def of(self, module: nn.Module, *inputs: Any) -> tuple[Any, Mapping[str, Tensor]]:
        """Return what a module gives for inputs, and the activations of this pass alone."""
        self.on = True
        output = module(*inputs)
        self.on = False
        return output, self.take()

    def take(self) -> Mapping[str, Tensor]:
        """Return what was recorded since the last call, (samples, units, …) by name."""
        taken, self._found = self._found, {}
        if not torch.compiler.is_compiling():
            self._forward.clear()
        return {name: v[0] if len(v) == 1 else torch.cat(v) for name, v in taken.items()}

    def stop(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()


@dataclass(eq=False)
class Keep:
    """The hook of a `Recorder` at one point; a copy of the module is not recorded."""

    recorder: Recorder | None
    point: ActivationPoint
    names: list[str]  # one per member of a stacked layer

    def __call__(self, module: nn.Module, args: Any, out: Any) -> None:
        """Keep a pass: of all members, or of the one that is named after the input."""
        if self.recorder is None:
            return
        one = self.point.members > 0 and len(args) > 1
        names = [self.names[args[1]]] if one else self.names
        self.recorder.keep(self.point, names, out, not one)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made, by copy or pickle."""
        return Keep, (None, self.point, self.names)


def check_norms(network: Network) -> list[Any]:
    """Let each pass refuse a norm that normalises another dimension than the units'.

    Sizes do not tell: of (batch, 5 steps, 5 units) a BatchNorm normalises the steps. Returns the
    handles of the hooks.
    """
    points = {g.point: g.name for g in network.units().groups if g.point is not None}
    handles = []
    for point, units in points.items():
        for path in () if point.units or point.members else point.norms:
            norm = network.module.get_submodule(path)
            if isinstance(norm, _NormBase | nn.GroupNorm):
                labels = f"{network.name}.{path}", f"{network.name}.{units}"
                handles.append(norm.register_forward_hook(partial(_check_norm, *labels)))
    return handles


def _check_norm(norm: str, units: str, module: nn.Module, args: Any, out: Any) -> None:
    if isinstance(out, Tensor) and out.ndim > 2:
        raise ConfigError(
            f"{norm} normalises dimension 1 of {tuple(out.shape)}, and the units of {units} are "
            "the last: its entries are none of theirs; pass units=[rlplast.UnitSpec(...)] without "
            "that norm to its Network"
        )


@contextmanager
def record(network: Network) -> Iterator[dict[str, Tensor]]:
    """Record the activations of the forward passes in a ``with`` block.

    Args:
        network: the network whose module makes the passes.

    Yields:
        A mapping of group → activations (samples, units, …), for `Hooks.step(activations=...)`. It
        is filled when the block ends; it stays empty, with a warning, where code runs that was
        compiled outside of such a block.
    """
    network.refresh()
    recorder = Recorder(network)
    activations: dict[str, Tensor] = {}
    try:
        yield activations
        activations.update(recorder.take())
        if not activations and network.compiled:
            warnings.warn(
                f"record saw no pass of network {network.name!r}, which is compiled: what was "
                "compiled outside of record does not see it; call torch.compiler.reset() once "
                "before the first update, and make other passes under torch.no_grad()",
                stacklevel=3,
            )
    finally:
        recorder.stop()


class WithWeights(nn.Module):
    """A module computed with other weights and buffers, by their names, than its own."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.tensors = module, dict(tensors)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module does with the other weights; it may write into copies alone."""
        buffers = dict(self.module.named_buffers())
        tensors = {n: t.clone() if n in buffers else t for n, t in self.tensors.items()}
        return functional_call(self.module, tensors, args, kwargs)
