"""The tiny models of tests/models.py with lifecycle layers, and short lives."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.methods.lifecycle_modules import LifecycleUnits
from tests.cases import install
from tests.models import OPTIMIZERS, Subject, subject

SHORT: dict[str, Any] = {"life": [3, 9], "recovery": [2, 5], "warmup": 4}
# Layers without units of their own, such as writers of a residual stream, have to be named.
NAMED = {"residual": ["inp", "fc"], "tied": ["fc"]}


def named(family: str) -> dict[str, Any]:
    """Return the parameter that chooses the hidden layers of a family; none if they are found."""
    return {"layers": NAMED[family]} if family in NAMED else {}


def living(
    family: str = "mlp",
    optimizer: str = "adam",
    install: Callable[[nn.Module], object] = lambda module: None,
    **params: Any,
) -> Subject:
    """Return a Subject at its initialisation; its follower has the layers too.

    What `install` puts into a model comes after them, as in a run.
    """
    made = subject(family, OPTIMIZERS[optimizer], updates=0)
    for module in (made.module, made.follower):
        rlplast.replace_layers(module, **(SHORT | named(family) | params))
        install(module)
    made.follower.requires_grad_(False)
    made.network = Network("net", made.module, made.optimizer, {"target": made.follower})
    return made


def halfway(family: str = "mlp", updates: int = 7, method: str = "", **params: Any) -> Subject:
    """Return a Subject some updates later: in every layer some units sleep and some do not.

    The modules of a method that brings some are there too.
    """
    own = partial(install, method) if method else lambda module: None
    made = living(family, "adamw_fused", own, **params)
    for _ in range(updates):
        made.update()
        rlplast.tick(made.network)
    for layer in layers_of(made.module).values():
        assert 0 < int(layer.active.sum()) < layer.active.numel()
    return made


def layers_of(module: nn.Module) -> dict[str, Any]:
    """Return the lifecycle layers by path."""
    return {path: m for path, m in module.named_modules() if isinstance(m, LifecycleUnits)}
