"""What hooks read in somebody else's trainer: activations of its updates, and probe batches."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map, tree_map_only

from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.method import implements
from rlplast.core.method.readings import Source, output_of
from rlplast.core.method.rule import Rule
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder, record

__all__ = ["LastBatch", "Recording", "TrainerSource", "check_readings", "was_skipped"]


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether a step just made moved nothing: a GradScaler calls fused optimizers to skip it."""
    return bool(getattr(optimizer, "found_inf", 0.0))


class Recording:
    """Records the passes with gradients of networks, each until its (last) optimizer's step."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks
        self.recorders = {n.name: Recorder(n, training_only=True) for n in networks}
        self._taken: dict[str, Activations] = {}
        self._handles: list[Any] = []
        self.attach()

    def attach(self) -> None:
        """Follow the optimizers that the networks have now."""
        for handle in self._handles:
            handle.remove()
        self._handles = [
            n.optimizers[-1].register_step_post_hook(partial(self._stepped, n))
            for n in self.networks
        ]

    def _stepped(self, network: Network, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        name, recorder = network.name, self.recorders[network.name]
        if not recorder.on or was_skipped(optimizer):
            return
        taken = recorder.take()
        if not taken and any(b.param.grad is not None for b in network.trainable()):
            raise ConfigError(
                f"HookCallback: network {name!r} was updated and none of its layers was seen in a "
                "training pass, so that its activations are not known: give the hooks that read "
                "them other networks=, or, if it was compiled and used before training, call "
                "torch.compiler.reset() first"
            )
        self._taken[name], recorder.on = taken, False

    def end_update(self) -> dict[str, Activations]:
        """Return an update's activations by network; empty for networks that did not step."""
        taken = {name: self._taken.get(name, {}) for name in self.recorders}
        self.drop()
        return taken

    def drop(self) -> None:
        """Forget the passes since the last update: no update will use them."""
        self._taken.clear()
        for recorder in self.recorders.values():
            recorder.take()
            recorder.on = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the passes in a ``with`` block."""
        before = [(recorder, recorder.on) for recorder in self.recorders.values()]
        for recorder, _ in before:
            recorder.on = False
        try:
            yield
        finally:
            for recorder, on in before:
                recorder.on = on

    def stop(self) -> None:
        """Take the hooks off modules and optimizers."""
        for handle in self._handles:
            handle.remove()
        for recorder in self.recorders.values():
            recorder.stop()


class TrainerSource(Source):
    """Where scheduled hooks read, if the user gives no probe.

    `with_loss` and `with_outputs` are the networks of which these are known.
    """

    with_loss: Collection[str]
    with_outputs: Collection[str]

    @abstractmethod
    def start(self) -> Sequence[Any]:
        """Begin to keep batches for hooks; return handles that end it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what has been kept: tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""


class LastBatch(TrainerSource):
    """The arguments of each network's last training pass, detached, to be run again.

    `with_loss` names those whose module returns its loss when it is given labels.
    """

    with_outputs: Collection[str] = ()  # only the last batch is known

    def __init__(self, networks: Mapping[str, Network], with_loss: Collection[str] = ()) -> None:
        self.networks = networks
        self.with_loss: Collection[str] = with_loss
        self.kept: dict[str, dict[str, Any]] = {}

    def start(self) -> Sequence[Any]:
        """Put a hook before each network's forward pass; return their handles."""
        return [
            n.module.register_forward_pre_hook(
                partial(_keep, self.kept, name, _device(n).type), with_kwargs=True
            )
            for name, n in self.networks.items()
        ]

    def sample(self, size: int, number: int) -> Mapping[str, Any]:
        """Return the last batch, whatever its size."""
        return self.kept

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Any]:
        """Refuse: one batch is not the training data."""
        raise ConfigError("HookCallback knows one batch of the training data: pass probe=")

    def _activations_on(self, network: str, batch: Mapping[str, Any]) -> Activations:
        with record(self.networks[network]) as taps:
            self._run(network, batch)
        return taps

    def _outputs_on(self, network: str, batch: Mapping[str, Any], module: nn.Module) -> Tensor:
        return output_of(self._run(network, batch, module), network)

    def _loss_on(self, network: str, batch: Mapping[str, Any]) -> Tensor:
        output = self._run(network, batch)
        known = output.get("loss") if isinstance(output, Mapping) else None
        if known is None:
            raise ConfigError(
                f"HookCallback: network {network!r} returns no loss on its last batch, of which "
                "gradients are read: give it labels, or pass probe= and loss="
            )
        return known

    def _run(self, network: str, batch: Mapping[str, Any], module: nn.Module | None = None) -> Any:
        if network not in batch:
            raise ConfigError(
                f"HookCallback: the module of network {network!r} has not been called in training "
                "yet, so that there is no batch to read: let the hook fire later, name a part that "
                "is called with networks=, or pass probe="
            )
        handle, call = self.networks[network], batch[network]
        device = _device(handle)
        arguments = call["args"], call["kwargs"]
        args, kwargs = tree_map_only(Tensor, lambda value: value.to(device), arguments)
        low = call["autocast"]  # the type that the pass was made in
        dtype = None if low is None else getattr(torch, low.removeprefix("torch."))
        with torch.autocast(device.type, dtype) if dtype else nullcontext():
            return (handle.module if module is None else module)(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the last batch."""
        return {"last_batch": dict(self.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back the last batch."""
        self.kept.update(state.get("last_batch", {}))


def _keep(
    kept: dict[str, Any], name: str, kind: str, module: nn.Module, args: Any, kwargs: Any
) -> None:
    """Keep the arguments of a training pass; holds no network, so that models can be copied."""
    if torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
        low = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
        args, kwargs = tree_map(partial(_plain, name), (list(args), dict(kwargs)))
        kept[name] = {"args": args, "kwargs": kwargs, "autocast": low}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"HookCallback: the module of network {name!r} is called with a {type(value).__name__}, "
        "which cannot be kept to be run again: pass probe="
    )


def _device(network: Network) -> torch.device:
    return network.blocks[0].view.device


def check_readings(
    hooks: Hooks, source: TrainerSource | None, probe: Any, loss: Any, shards: int
) -> bool:
    """Return whether a hook reads from the trainer's own source; `shards` devices share a batch.

    Raises:
        ConfigError: naming a hook that has nothing to read, or would read other values in each
            process, its networks and what to pass.
    """
    needed = False
    for hook in hooks.hooks:
        needed = needed or (hook.method.measures_deviation and probe is None)
        if hook.schedule.every_update:
            _check_inside(hook, hooks, shards)
        elif reads := _read_at_firings(hook):
            losses = () if source is None else source.with_loss
            of_source = all(network.name in losses for network in hook.networks)
            has_loss = of_source if probe is None else loss is not None
            _check_scheduled(hook, reads, probe is not None, has_loss, source is not None, shards)
            needed = needed or probe is None
    return needed


def _check_inside(hook: Rule, hooks: Hooks, shards: int) -> None:
    reads, name = hook.method.reads, _name(hook)
    if "activations" in reads and shards > 1:
        raise ConfigError(
            f"{name} reads activations of every update: each of {shards} processes or devices "
            "sees its own rows, and they would decide differently; train in one, or give the hook "
            "another schedule and pass probe="
        )
    optimizers = {o for network in hooks.networks.values() for o in network.optimizers}
    if "gradients" in reads and len(optimizers) > 1:
        raise ConfigError(
            f"{name} reads gradients of every update: with {len(optimizers)} optimizers the loss "
            "of one network leaves gradients in another; allowed are trainers with one optimizer, "
            "or another schedule with probe= and loss="
        )


def _read_at_firings(hook: Rule) -> list[str]:
    """Return what a plan reads of a batch; `check_terms` looks at what only a term reads."""
    of_term = {"batches"} if implements(hook.method, "term") else set()
    return [r for r in hook.method.reads if r != "moments" and r not in of_term]


def _check_scheduled(
    hook: Rule, reads: Sequence[str], probe: bool, loss: bool, known: bool, shards: int
) -> None:
    name = _name(hook)
    ask = "probe=, a function (size, generator) that returns what the network is called with"
    if "batches" in reads and not probe:
        raise ConfigError(
            f"{name} reads batches: pass {ask}, and loss=, a function of such a batch"
        )
    if {"gradients", "batches"} & set(reads) and not loss:
        lacking = "loss=" if probe else f"{ask}, and loss="
        raise ConfigError(f"{name} reads gradients: pass {lacking}, a function of such a batch")
    if not probe and not known:
        raise ConfigError(
            f"{name} reads activations, and no batch of this trainer fits: pass {ask}"
        )
    if not probe and shards > 1:
        raise ConfigError(
            f"{name} reads {' and '.join(reads)} of a batch: each of {shards} processes or devices "
            f"sees its own rows, and they would decide differently; pass {ask}, equal on all"
        )


def _name(hook: Rule) -> str:
    networks = ", ".join(repr(network.name) for network in hook.networks)
    several = "networks" if len(hook.networks) > 1 else "network"
    return f"HookCallback: {hook.label} on {several} {networks}"
