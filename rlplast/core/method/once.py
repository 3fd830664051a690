"""One firing on anybody's model, without a schedule.

- `fire_once`: what `rlplast.fire`, `rlplast.swr` and the other plain functions call.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.hook import Hook
from rlplast.core.method.method import Method
from rlplast.core.method.readings import OwnSource
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.schedule import Schedule
from rlplast.core.method.scope import scope
from rlplast.core.network.network import Network
from rlplast.core.registry import build

__all__ = ["fire_once"]


def fire_once(
    method: str,
    model: torch.nn.Module | Network,
    optimizer: Any = None,
    *,
    scope_name: str = "all",
    target: torch.nn.Module | None = None,
    initial: Mapping[str, Tensor] | None = None,
    optimizer_policy: str | None = None,
    follower_policy: str | None = None,
    seed: int = 0,
    inputs: Any = None,
    loss: Any = None,
    **params: Any,
) -> Receipt:
    """Apply a method to a model once; `rlplast.fire` and the other plain functions call this.

    Args:
        method: name of the method.
        model: a module, or a ready `Network`.
        optimizer: the optimizer (or several) that trains it. The optimizer policy says which part
            of its state is reset.
        scope_name: which layers; see `rlplast.core.method.scope.SCOPES`.
        target: a target network or average that follows the model.
        initial: θ0 by parameter name, such as a state dict saved before training. Methods and
            scopes that return to θ0 need it.
        optimizer_policy: network, parameter, touched or keep; default: the method's own.
        follower_policy: copy, same_edit or leave; default: the method's own.
        seed: seed of the random draws.
        inputs: inputs of the model, or a function (size, generator) → inputs. Methods that read
            activations or gradients need them.
        loss: a function inputs → loss, for methods that read gradients.
        **params: the method's parameters.

    Raises:
        ConfigError: for a parameter that does not exist or is out of range, if the method needs
            θ0 and none was given, or a policy is unknown.
    """
    chosen = scope(scope_name)
    found: Method = build("interventions", method, params)
    if isinstance(model, Network):
        if optimizer is not None or target is not None or initial is not None:
            raise ConfigError(
                "a Network brings its own optimizer, followers and θ0: pass the bare module, or "
                "leave optimizer, target and initial out"
            )
        network = model
    else:
        followers = {} if target is None else {"target": target}
        network = Network("model", model, optimizer, followers, initial=initial)
        if initial is None and (found.uses_initial or network.select(chosen.restore)):
            raise ConfigError(
                f"{method} with scope {scope_name!r} reads the initial weights: pass initial=, a "
                "state dict saved before training"
            )
    hook = Hook(
        method=found,
        schedule=Schedule(at=(Time(0, "updates"),)),
        networks=(network,),
        scope=chosen,
        optimizer=optimizer_policy or found.policies[0],
        followers=follower_policy or found.policies[1],
        key=method,
        source=None if inputs is None else OwnSource({network.name: network}, inputs, loss, seed),
    )
    return hook.fire(Clock(), 1, seed)[0]
