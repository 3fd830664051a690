"""Modules that are called without being trained: as before afterwards."""

import collections
import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from rlplast.core.rng import preserve_global_rng

__all__ = ["BORROWED", "in_mode", "reading"]

_STATELESS = ("torch.", "rlplast.")  # whose parts keep what changes in buffers
_STATES = (torch.Tensor, torch.Generator, np.ndarray, np.random.Generator, np.random.RandomState)
_STATES += (random.Random, list, dict, set, collections.deque)
_COMMON = frozenset(vars(nn.Module()))  # parameters, buffers, parts, hooks
BORROWED = "rlplast_borrowed"  # attribute of modules whose buffers are copies for a while


@contextmanager
def reading(*modules: nn.Module, evaluate: bool = True, copies: bool = True) -> Iterator[None]:
    """Call modules in evaluation mode, and leave them as they were.

    Modes, buffers and attributes of every part are put back, and so are the global generators. What
    parts of a user's keep in plain tensors, containers and generators is a copy meanwhile.

    Args:
        *modules: all that are called.
        evaluate: whether they are in evaluation mode; else they keep their modes.
        copies: whether they compute with copies of their buffers, so that what they return can be
            differentiated; else buffers get their values back, whose addresses a captured graph
            knows.
    """
    parts = {id(part): part for module in modules for part in module.modules()}.values()
    kept = [(part, dict(vars(part)), dict(part._buffers)) for part in parts]
    buffers = {id(b): b for _, _, held in kept for b in held.values() if b is not None}
    copied = {key: buffer.detach().clone() for key, buffer in buffers.items()}
    for part, _, held in kept if copies else ():
        part._buffers.update({n: None if b is None else copied[id(b)] for n, b in held.items()})
        vars(part)[BORROWED] = True  # which goes with what is put back
    tensors = [t for part in parts for t in (*part._parameters.values(), *part._buffers.values())]
    memo: dict[int, Any] = {id(x): x for x in (*parts, *tensors)}  # which stay what they are
    for part in parts:
        if not type(part).__module__.startswith(_STATELESS):
            states = {
                k: v for k, v in vars(part).items() if isinstance(v, _STATES) and k not in _COMMON
            }
            vars(part).update({k: copy.deepcopy(v, memo) for k, v in states.items()})
    try:
        with preserve_global_rng(), in_mode(*modules if evaluate else (), train=False):
            yield
    finally:
        for part, attributes, held in kept:
            for store, before in ((vars(part), attributes), (part._buffers, held)):
                store.clear()
                store.update(before)
        with torch.no_grad():
            for key, buffer in buffers.items() if not copies else ():
                buffer.copy_(copied[key])


@contextmanager
def in_mode(*modules: nn.Module, train: bool) -> Iterator[None]:
    """Put modules into training or evaluation mode, and every part of them back as it was.

    Their own ``train()`` is not called, which may write weights. A module that trains already keeps
    its parts that are frozen in evaluation mode.
    """
    changed = [module for module in modules if not (train and module.training)]
    modes = {part: part.training for module in changed for part in module.modules()}
    try:
        for part in modes:
            part.training = train
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
