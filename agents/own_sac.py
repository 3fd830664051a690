"""Networks of SAC whose trunks a user's function makes, below heads of ours.

The function gets `obs_shape` and `action_dim` by name and returns two modules. The actor's trunk
gets observations (batch, *obs_shape) and returns (batch, any number). The critic's gets
observations and actions (batch, action_dim) and returns the same. It is called again for every
member of the critics, which share nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.losses import between
from rlplast.core.errors import ConfigError
from rlplast.core.network.own import check_again, check_outputs, factory_of, made, own_initializer
from rlplast.core.rng import derive_seed

__all__ = ["OwnActor", "OwnCritic"]

_KEY = "agent.network"


def _trunk(name: str, part: int, seed: int, inputs: Sequence[Tensor], **spaces: Any) -> nn.Module:
    """Return the trunk of the actor (0) or of a critic (1) that a function makes."""
    factory = factory_of(_KEY, name)

    def one(**spaces: Any) -> nn.Module:
        found = factory(**spaces)
        if not isinstance(found, tuple) or [isinstance(m, nn.Module) for m in found] != [True] * 2:
            raise ConfigError(
                f"{_KEY} = {name!r}: the function returned a {type(found).__name__}: allowed is a "
                "pair of modules, the trunk of the actor and that of a critic"
            )
        return found[part]

    which = ("the actor's trunk", "the critics' trunk")[part]
    return made(f"{_KEY} = {name!r}, {which}", one, seed, inputs, **spaces)


def _making(
    name: str, part: int, obs_shape: Sequence[int], action_dim: int, seed: int
) -> tuple[Callable[[int], nn.Module], int]:
    """Return what makes a trunk from a seed, and how many numbers that of `seed` returns."""
    shape = tuple(obs_shape)
    inputs = (torch.zeros(2, *shape), torch.zeros(2, action_dim))[: 1 + part]
    make = partial(_trunk, name, part, inputs=inputs, obs_shape=shape, action_dim=action_dim)
    key, first = f"{_KEY} = {name!r}", make(seed=seed)
    check_again(key, first, make(seed=seed))
    return make, check_outputs(key, first, inputs)


def _head(width: int, outputs: int) -> nn.Linear:
    """Return a layer that is known as a head, also where the user's trunk cannot be traced."""
    layer = nn.Linear(width, outputs)
    layer.is_head = True  # type: ignore[assignment]
    return layer


class OwnActor(nn.Module):
    """A user's trunk with two linear heads; see `rlplast.agents.sac_networks.Actor`.

    Args:
        name: ``package.module:factory``.
        obs_shape: shape of one observation.
        action_dim: entries of an action.
        log_std_min: lower bound of `log_std`.
        log_std_max: upper bound.
        log_std: how it gets between them.
        seed: that buffers are drawn from.
    """

    of_user = True

    def __init__(
        self,
        name: str,
        obs_shape: Sequence[int],
        action_dim: int,
        log_std_min: float,
        log_std_max: float,
        log_std: str,
        seed: int = 0,
    ) -> None:
        super().__init__()
        make, width = _making(name, 0, obs_shape, action_dim, seed)
        self.net = make(seed)
        self.mean, self.log_std = (_head(width, action_dim) for _ in range(2))
        self.log_std_range = log_std, log_std_min, log_std_max
        self.init_block = own_initializer(lambda seed: nn.ModuleDict({"net": make(seed)}))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std, (batch, action_dim), of (batch, *obs_shape)."""
        hidden = self.net(obs).float()
        mean, log_std = (head(hidden).float() for head in (self.mean, self.log_std))
        return mean, between(log_std, *self.log_std_range)


class OwnCritic(nn.Module):
    """Values of an action by every member of an ensemble: trunks of a user with linear heads.

    Args:
        name: ``package.module:factory``.
        obs_shape: shape of one observation.
        action_dim: entries of an action.
        members: how many critics.
        seed: that buffers are drawn from.
        bins: if values are categorical; None for one number.
    """

    of_user = True

    def __init__(
        self,
        name: str,
        obs_shape: Sequence[int],
        action_dim: int,
        members: int,
        seed: int = 0,
        bins: int | None = None,
    ) -> None:
        super().__init__()
        self.bins = bins
        make, width = _making(name, 1, obs_shape, action_dim, seed)
        self.nets = nn.ModuleList(make(derive_seed(seed, i)) for i in range(members))
        self.heads = nn.ModuleList(_head(width, bins or 1) for _ in range(members))
        self.init_block = own_initializer(
            lambda seed: nn.ModuleDict(
                {"nets": nn.ModuleList(make(derive_seed(seed, i)) for i in range(members))}
            )
        )

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values, (members, batch), or logits, (members, batch, bins).

        They are of (batch, *obs_shape) and (batch, action_dim).
        """
        pairs = zip(self.nets, self.heads, strict=True)
        values = torch.stack([head(net(obs, action).float()) for net, head in pairs]).float()
        return values.squeeze(-1) if self.bins is None else values
