"""Penalties inside somebody else's trainer: their gradient is added before an optimizer's step.

The trainer's loss is not known, so a term's gradient, at the weights before the step, is added to
``.grad``: the same update, unless the trainer clips gradients, which then leaves out the term's.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from torch.optim import Optimizer

from rlplast.adapters.reading import TrainerSource
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network

__all__ = ["add_gradients", "check_terms"]


def check_terms(penalties: Penalties, source: TrainerSource | None, probe: bool) -> bool:
    """Return whether a term reads from the trainer's own source: without the user's `probe`.

    Raises:
        ConfigError: for a term that reads the trainer's loss, or outputs on batches that are not
            known.
    """
    reads = [term for term in penalties.terms if "batches" in term.method.reads]
    for term in penalties.terms:
        if term.method.reads_loss:
            raise ConfigError(
                f"HookCallback: {term.label} follows the size of the loss, which the trainer keeps "
                "to itself: give it a fixed strength (leave out `beta`)"
            )
    for term, name in ((t, n.name) for t in reads if not probe for n in t.networks):
        if source is None or name not in source.with_outputs:
            raise ConfigError(
                f"HookCallback: {term.label} compares outputs of network {name!r} on a batch, of "
                "which this trainer gives none: name another network (of PPO and A2C actor or "
                "critic), pass probe=, or take a penalty of weights, such as l2_init"
            )
    return bool(reads) and not probe


def add_gradients(
    penalties: Penalties,
    networks: Mapping[str, Network],
    clock: Clock,
    paused: Callable[[], AbstractContextManager[None]],
    optimizer: Optimizer,
) -> None:
    """Add the gradients of terms to those of the parameters that an optimizer is about to move.

    Within `paused` forward passes are not taken for training passes.
    """
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    for name, network in networks.items():
        network.refresh()
        moved = {id(b.param): held[id(b.param)] for b in network.trainable() if id(b.param) in held}
        if not moved:
            continue
        with paused(), torch.enable_grad():
            term = penalties.of(name, clock=clock)
            if term is None or not term.requires_grad:
                continue
            gradients = torch.autograd.grad(term, list(moved.values()), allow_unused=True)
        for parameter, gradient in zip(moved.values(), gradients, strict=True):
            if gradient is not None:
                old = parameter.grad
                parameter.grad = gradient if old is None else old.add_(gradient)
