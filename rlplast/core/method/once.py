"""A method applied once, to anybody's model and without a schedule."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.listing import Row
from rlplast.core.method.method import Method
from rlplast.core.method.readings import OwnSource
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.rule import Rule
from rlplast.core.method.schedule import Schedule
from rlplast.core.method.scope import scope as scope_of
from rlplast.core.network.network import Network
from rlplast.core.registry import build, get

__all__ = ["apply", "plain"]

P = ParamSpec("P")
# What is for methods that a config does not list under hooks.
DOORS = {"layers": "rlplast.replace_layers", "penalties": "rlplast.Penalties"}


def apply(
    method: str,
    model: torch.nn.Module | Network,
    optimizer: Any = None,
    *,
    scope: str = "all",
    target: torch.nn.Module | None = None,
    initial: Mapping[str, Tensor] | None = None,
    optimizer_policy: str | None = None,
    follower_policy: str | None = None,
    seed: int = 0,
    inputs: Any = None,
    loss: Any = None,
    **params: Any,
) -> Receipt:
    """Apply a method to a model once, in place.

    Args:
        method: name of the method, such as ``fire``; see `rlplast list interventions`.
        model: a module, or a ready `rlplast.Network`. Make one before training, and it keeps the
            initial weights.
        optimizer: the optimizer (or several) that trains it. The optimizer policy says which part
            of its state is reset.
        scope: which layers; see `rlplast.core.method.scope.SCOPES`.
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
        ConfigError: for a method that is a layer or a penalty, a parameter that does not exist or
            is out of range, an unknown policy, or if θ0 is needed and was not given.

    Examples:
        >>> import torch, rlplast
        >>> layer = torch.nn.Linear(4, 4, bias=False)
        >>> receipt = rlplast.apply("fire", layer, polynomial="exact")
        >>> torch.allclose(layer.weight @ layer.weight.T, torch.eye(4), atol=1e-5)
        True
    """
    chosen = scope_of(scope)
    kind: Any = get("methods", method).target
    if kind.key in DOORS:
        raise ConfigError(f"{method} edits no weights by itself: use {DOORS[kind.key]}")
    chosen_method: Method = build("interventions", method, params)
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
        if initial is None and (chosen_method.uses_initial or network.select(chosen.restore)):
            raise ConfigError(
                f"{method} with scope {scope!r} reads the initial weights: pass initial=, a "
                "state dict saved before training"
            )
    row = Row(
        method,
        chosen_method,
        schedule=Schedule(at=(Time(0, "updates"),)),
        scope=chosen,
        optimizer=optimizer_policy or chosen_method.policies[0],
        followers=follower_policy or chosen_method.policies[1],
    )
    source = None if inputs is None else OwnSource({network.name: network}, inputs, loss, seed)
    return Rule(row, (network,), source).fire(Clock(), 1, seed)[0]


def plain(
    kind: type[Method], function: Callable[Concatenate[str, P], Receipt] = apply
) -> Callable[P, Receipt]:
    """Return `apply` for one method; its signature and help have the method's parameters."""

    def alias(*args: P.args, **options: P.kwargs) -> Receipt:
        return function(kind.name, *args, **options)

    model, optimizer, *others, _ = list(inspect.signature(apply).parameters.values())[1:]
    fields = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(kind).parameters.values()]
    signature = inspect.Signature([model, optimizer, *fields, *others], return_annotation=Receipt)
    vars(alias)["__signature__"] = signature
    alias.__name__ = alias.__qualname__ = kind.name
    alias.__module__ = kind.__module__
    call = f'``rlplast.apply("{kind.name}", model, ...)``'
    alias.__doc__ = (
        f"{inspect.getdoc(kind)}\n\nThis is {call}. The other arguments are described there."
    )
    return alias
