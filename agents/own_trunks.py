"""Trunks that a user's function makes: that of the actor and that of a critic, or one for both."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.order import Order, forward_order
from rlplast.core.network.own import check_again, check_outputs, factory_of, made

__all__ = ["ACTOR", "CRITIC", "head", "making", "order_with_heads"]

ACTOR, CRITIC = 0, 1  # place in the pair; None is the only trunk
_KEY = "agent.network"


def making(
    name: str, part: int | None, inputs: Sequence[Tensor], seed: int, **spaces: Any
) -> tuple[Callable[[int], nn.Module], int]:
    """Return what makes a trunk from a seed, and how many numbers that of `seed` returns.

    The function `name` returns a pair of modules, of which `part` is one (`ACTOR` or `CRITIC`), or
    one module (None). `inputs` are zeros that a trunk is called with; `spaces` are the function's
    arguments.
    """
    make = partial(_trunk, name, part, inputs=inputs, **spaces)
    key, first = f"{_KEY} = {name!r}", make(seed=seed)
    check_again(key, first, make(seed=seed))
    return make, check_outputs(key, first, inputs)


def _trunk(
    name: str, part: int | None, seed: int, inputs: Sequence[Tensor], **spaces: Any
) -> nn.Module:
    key, factory = f"{_KEY} = {name!r}", factory_of(_KEY, name)
    if part is None:
        return made(f"{key} with agent.shared_trunk: true", factory, seed, inputs, **spaces)

    def one(**spaces: Any) -> nn.Module:
        pair = factory(**spaces)
        if not isinstance(pair, tuple) or [isinstance(m, nn.Module) for m in pair] != [True] * 2:
            raise ConfigError(
                f"{key}: the function returned a {type(pair).__name__}: allowed is a "
                "pair of modules, the trunk of the actor and that of a critic (for PPO also one, "
                "with agent.shared_trunk: true)"
            )
        _check_apart(key, *pair)
        return pair[part]

    which = ("the actor's trunk", "the critics' trunk")[part]
    return made(f"{key}, {which}", one, seed, inputs, **spaces)


def _check_apart(key: str, actor: nn.Module, critic: nn.Module) -> None:
    """Refuse trunks that train a layer in common: each is made by a call of its own."""
    of_actor = {id(p) for p in actor.parameters()}
    for name, parameter in critic.named_parameters():
        if parameter.requires_grad and id(parameter) in of_actor:
            raise ConfigError(
                f"{key}: actor and critic share {name}: give each layers of its own (a PPO may "
                "have one trunk: set agent.shared_trunk: true and return one module)"
            )


def head(width: int, outputs: int) -> nn.Linear:
    """Return a layer that is known as a head, also where the user's trunk cannot be traced."""
    layer = nn.Linear(width, outputs)
    layer.is_head = True  # type: ignore[assignment]
    return layer


def order_with_heads(name: str, trunk: nn.Module, *heads: str) -> Order | None:
    """Return the forward order of a trunk and the heads that read it; None if it is unknown."""
    try:
        order = forward_order(Network(name, trunk))
    except ConfigError:
        return None
    outer = [p for p in order if not any(p.startswith(f"{other}.") for other in order if other)]
    last = heads if len(heads) > 1 else heads[0]
    return [*(f"{name}.{path}".rstrip(".") for path in outer), last]
