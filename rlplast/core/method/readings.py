"""Readings: where the activations, gradients and batches of a `Context` come from."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import BadWeights, ConfigError, shortened
from rlplast.core.method.context import Activations
from rlplast.core.network.blocks import Block
from rlplast.core.network.modes import in_mode, reading
from rlplast.core.network.network import Network
from rlplast.core.network.record import check_norms, record
from rlplast.core.rng import derive_seed, preserve_global_rng, torch_stream

__all__ = ["Inside", "OwnSource", "Probe", "Source", "is_trainer", "output_of"]


class Source(ABC):
    """Draws batches from its own streams, and computes on them; its networks stay as they are.

    They and their followers are in evaluation mode meanwhile, but for a loss of training mode.
    """

    networks: Mapping[str, Network]

    @abstractmethod
    def sample(self, size: int, number: int) -> Any:
        """Return a batch drawn from stream `number`; None if there is no data yet."""

    @abstractmethod
    def batches(self, count: int | None, size: int, number: int) -> Iterator[Any]:
        """Yield `count` batches of `size` samples of the training data, from stream `number`.

        Without a count they are one pass over all data of now.
        """

    def activations(self, network: str, batch: Any) -> Activations:
        """Return activations (samples, units, …), after the nonlinearity, by name of units."""
        with self.reading(), torch.no_grad(), _eager():
            return self._activations_on(network, batch)

    def outputs(self, network: str, batch: Any, module: nn.Module | None = None) -> Tensor | None:
        """Return a network's outputs on a batch, (samples, outputs…); None if it reads no sample.

        They are differentiable: by `module`, if one of the same architecture is given. Call it
        outside autocast.
        """
        module = self.networks[network].module if module is None else module
        with self.reading(), in_mode(module, train=False):
            return self._outputs_on(network, batch, module)

    def loss(self, network: str, batch: Any, train: bool = False) -> Tensor:
        """Return the loss that trains a network, on a batch, without penalties.

        In either mode no statistics move.
        """
        training = (self.networks[network].module,) if train else ()
        with self.reading(evaluate=not train), in_mode(*training, train=True):
            return self._loss_on(network, batch)

    def reading(self, **how: bool) -> AbstractContextManager[None]:
        """Return `rlplast.core.network.modes.reading` of all networks and their followers."""
        networks = self.networks.values()
        modules = [n.module for each in networks for n in (each, *each.followers.values())]
        return reading(*modules, **how)

    def _activations_on(self, network: str, batch: Any) -> Activations:
        handle = self.networks[network]
        with record(handle) as activations:
            self._outputs_on(network, batch, handle.module)
        return activations

    @abstractmethod
    def _outputs_on(self, network: str, batch: Any, module: nn.Module) -> Tensor | None: ...

    @abstractmethod
    def _loss_on(self, network: str, batch: Any) -> Tensor: ...


def is_trainer(source: Source | None) -> bool:
    """Whether a source is a trainer of ours, which moves, freezes and replaces nothing."""
    return hasattr(source, "clock")


def _eager() -> AbstractContextManager[Any]:
    """Return a context without compiled code, which does not see new forward hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@dataclass(eq=False)
class Probe:
    """What a scheduled firing reads of one network, computed when it is first asked for.

    `size` counts the samples of the probe batch, `number` names the firing's stream.
    """

    source: Source
    network: Network
    size: int
    number: int
    label: str

    @cached_property
    def _batch(self) -> Any:
        with preserve_global_rng():  # a user's function may draw from it
            batch = self.source.sample(self.size, self.number)
        if batch is None:
            raise ConfigError(
                f"{self.label} reads a probe batch and there are no data yet: let it fire later"
            )
        return batch

    @cached_property
    def activations(self) -> Activations:
        """Activations on the probe batch, by name of their units; refused if not finite."""
        activations = self.source.activations(self.network.name, self._batch)
        return self._finite(activations, "activations")

    @cached_property
    def gradients(self) -> Mapping[str, Tensor]:
        """Gradients on the probe batch, by Block name and in its layout; refused if not finite."""
        return self._finite(self.gradients_on(self._batch, train=False), "gradients")

    def _finite(self, read: Mapping[str, Tensor], what: str) -> Mapping[str, Tensor]:
        if read and not bool(torch.stack([t.isfinite().all() for t in read.values()]).all()):
            every = [b for b in self.network.blocks if not bool(b.view.isfinite().all())]
            names = ", ".join(map(self.network.qualified, every))
            raise BadWeights(
                f"{self.label} reads {what} of network {self.network.name!r} that are not "
                f"finite, from {names or 'finite weights: look at its inputs'}; nothing was written"
            )
        return read

    def batches(self, count: int | None, size: int) -> Iterator[Any]:
        """Yield batches of the training data."""
        drawn, end = self.source.batches(count, size, self.number), object()
        while True:
            with preserve_global_rng():  # around each: what is done with one may draw
                batch = next(drawn, end)
            if batch is end:
                return
            yield batch

    def outputs(self, batch: Any, module: nn.Module | None) -> Tensor:
        """Return the network's outputs on a batch; refused if it reads no sample."""
        outputs = self.source.outputs(self.network.name, batch, module)
        if outputs is None:
            raise ConfigError(f"{self.label}: network {self.network.name!r} has no outputs to read")
        return outputs

    def gradients_on(self, batch: Any, train: bool) -> Mapping[str, Tensor]:
        """Return gradients of the loss on a batch; nothing else moves."""
        network = self.network
        handles = check_norms(network)
        try:
            with preserve_global_rng(), torch.enable_grad():  # the backward pass may draw too
                loss = self.source.loss(network.name, batch, train)
                _check_loss(loss, f"{self.label}, network {network.name!r}")
                return _gradients(network, loss)
        finally:
            for handle in handles:
                handle.remove()


def _check_loss(loss: Any, label: str) -> None:
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        raise ConfigError(
            f"{label} reads gradients of a loss that is {shortened(loss)}: allowed is a scalar "
            "tensor that is computed from the network's outputs"
        )


def _gradients(network: Network, loss: Tensor) -> dict[str, Tensor]:
    blocks = network.trainable()
    held = list({id(b.param): b.param for b in blocks}.values())
    gradients = torch.autograd.grad(loss, held, allow_unused=True)
    by_id = {id(p): g for p, g in zip(held, gradients, strict=True)}
    pairs = [(b, by_id[id(b.param)]) for b in blocks]
    return {b.name: _dense(b, gradient) for b, gradient in pairs if gradient is not None}


def _dense(block: Block, gradient: Tensor) -> Tensor:
    """Return a Block's part of a gradient; that of a sparse embedding holds its rows alone."""
    return block.like(gradient.to_dense() if gradient.is_sparse else gradient)


class Inside:
    """What a method reads inside an update: the update's own forward and backward pass."""

    def __init__(self, network: Network, activations: Activations | None, label: str) -> None:
        self.network, self.label = network, label
        self._activations = activations

    @property
    def activations(self) -> Activations:
        """Activations of the update's own forward pass."""
        if self._activations is None:
            raise ConfigError(
                f"{self.label} reads activations inside every update: pass "
                "activations= to Hooks.step, as rlplast.record(network) gives them"
            )
        return self._activations

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients that this update used."""
        blocks = self.network.trainable()
        return {b.name: _dense(b, b.param.grad) for b in blocks if b.param.grad is not None}


class OwnSource(Source):
    """A source made of a user's functions, each one for all networks or a mapping by network.

    Args:
        networks: the networks by name.
        probe: (size, generator) → a batch, or a batch: what the model is called with, which is a
            tensor, a tuple of arguments or a mapping of keyword arguments.
        loss: batch → loss, for methods that read gradients.
        seed: seed of the draws.
    """

    def __init__(
        self, networks: Mapping[str, Network], probe: Any, loss: Any = None, seed: int = 0
    ) -> None:
        self.networks, self.seed = networks, seed
        self.probe, self._loss = probe, loss

    def sample(self, size: int, number: int) -> Any:
        """Return a batch of each network that has a probe; None without any."""
        if self.probe is None:
            return None
        probes: Any = self.probe
        if not isinstance(probes, Mapping) or not probes or set(probes) - set(self.networks):
            probes = {"": probes}
        return {
            name: p(size, torch_stream(self.seed, "probe", number)) if callable(p) else p
            for name, p in probes.items()
        }

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Any]:
        """Yield `count` batches, each of a stream of its own; a pass over all data is refused."""
        if count is None:
            raise ConfigError("batches = None: a probe has no end; say how many, such as 4")
        return (self.sample(size, derive_seed(number, i)) for i in range(count))

    def _activations_on(self, network: str, batch: Any) -> Activations:
        with record(self.networks[network]) as activations:
            _call(self._called(network, "what reads activations"), self._batch_of(batch, network))
        return activations

    def check(self, reads: Iterable[str], network: str, reader: str) -> None:
        """Check that a network's module and functions give what a method reads."""
        if "gradients" in reads:
            self.loss_of(network, reader)
        if "activations" in reads:
            self._called(network, reader)

    def _called(self, network: str, reader: str) -> nn.Module:
        module = self.networks[network].module
        if getattr(module.forward, "__func__", None) is nn.Module.forward:
            raise ConfigError(
                f"{reader} calls network {network!r}, but its {type(module).__name__} has no "
                "forward: write one that returns all outputs, such as self.actor(x), self.critic(x)"
            )
        return module

    def _outputs_on(self, network: str, batch: Any, module: nn.Module) -> Tensor | None:
        return output_of(_call(module, self._batch_of(batch, network)), network)

    def _loss_on(self, network: str, batch: Any) -> Tensor:
        return self.loss_of(network, "a method")(self._batch_of(batch, network))

    def loss_of(self, network: str, reader: str) -> Callable[[Any], Tensor]:
        """Return the function that gives a network's loss; without one `reader` is refused."""
        loss = self._loss.get(network) if isinstance(self._loss, Mapping) else self._loss
        if loss is None:
            raise ConfigError(
                f"{reader} reads gradients of network {network!r}, whose loss is not known: pass "
                "loss=, a function of a batch of the probe"
            )
        return loss

    def _batch_of(self, batch: Mapping[str, Any], network: str) -> Any:
        if network not in batch and "" not in batch:
            raise ConfigError(
                f"probe = a mapping of {list(batch)}: network {network!r} has none; give each "
                "network one"
            )
        return batch[network] if network in batch else batch[""]


def _call(module: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


def output_of(returned: Any, network: str) -> Tensor:
    """Return the tensor among what a model returns, itself or ``logits``, or refuse it."""
    output = returned.get("logits") if isinstance(returned, Mapping) else returned
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"network {network!r} returns a {type(returned).__name__}: to read its outputs, "
            "allowed is a tensor, or a mapping with the key 'logits'"
        )
    return output
