"""Networks of SAC whose trunks a user's function makes, below heads of ours.

The function gets `obs_shape` and `action_dim` by name and returns two modules. The actor's trunk
gets observations (batch, *obs_shape) and returns (batch, any number). The critic's gets
observations and actions (batch, action_dim) and returns the same. It is called again for every
member of the critics, which share nothing.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rlplast.agents.losses import between
from rlplast.agents.own_trunks import ACTOR, CRITIC, head, making, order_with_heads
from rlplast.core.network.order import Order
from rlplast.core.network.own import own_initializer
from rlplast.core.rng import derive_seed

__all__ = ["OwnActor", "OwnCritic"]


def _making(
    name: str, part: int, obs_shape: Sequence[int], action_dim: int, seed: int
) -> tuple[Callable[[int], nn.Module], int]:
    shape = tuple(obs_shape)
    inputs = (torch.zeros(2, *shape), torch.zeros(2, action_dim))[: 1 + part]
    return making(name, part, inputs, seed, obs_shape=shape, action_dim=action_dim)


class OwnActor(nn.Module):
    """A user's trunk with two linear heads; see `rlplast.agents.sac_networks.Actor`."""

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
        make, width = _making(name, ACTOR, obs_shape, action_dim, seed)
        self.net = make(seed)
        self.mean, self.log_std = (head(width, action_dim) for _ in range(2))
        self.log_std_range = log_std, log_std_min, log_std_max
        self.init_block = own_initializer(lambda seed: nn.ModuleDict({"net": make(seed)}))

    def forward_order(self) -> Order | None:
        """Return the layers' names in forward order, heads side by side last; None if unknown."""
        return order_with_heads("net", self.net, "mean", "log_std")

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std, (batch, action_dim), of (batch, *obs_shape)."""
        hidden = self.net(obs).float()
        mean, log_std = (last(hidden).float() for last in (self.mean, self.log_std))
        return mean, between(log_std, *self.log_std_range)


class OwnCritic(nn.Module):
    """Values of an action by every member of an ensemble: trunks of a user with linear heads."""

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
        make, width = _making(name, CRITIC, obs_shape, action_dim, seed)
        self.nets = nn.ModuleList(make(derive_seed(seed, i)) for i in range(members))
        self.heads = nn.ModuleList(head(width, bins or 1) for _ in range(members))
        self.init_block = own_initializer(
            lambda seed: nn.ModuleDict(
                {"nets": nn.ModuleList(make(derive_seed(seed, i)) for i in range(members))}
            )
        )

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values, (members, batch), or logits, (members, batch, bins)."""
        pairs = zip(self.nets, self.heads, strict=True)
        values = torch.stack([last(net(obs, action).float()) for net, last in pairs]).float()
        return values.squeeze(-1) if self.bins is None else values
