"""Networks of SAC: a Gaussian actor, twin critics as one network, and the temperature.

Source: Haarnoja et al. 2018. Networks of users are in `rlplast.agents.user_networks`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.encoders import Encoder, Projection
from rlplast.agents.losses import between
from rlplast.agents.trunks import KINDS, TrunkNetwork, TrunkSpec, is_plain
from rlplast.agents.user_networks import user_actor, user_critics
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.factory import is_factory
from rlplast.core.network.order import Order
from rlplast.core.network.stacked import computed
from rlplast.core.network.units import UnitSpec
from rlplast.metrics.ranks import at_least_float32

__all__ = ["KINDS", "Actor", "Critic", "Temperature", "TrunkSpec", "actor_of", "critic_of"]


class Actor(TrunkNetwork):
    """Mean and logarithm of the standard deviation of a Gaussian before tanh, two linear heads.

    `obs_dim` is the entries of an observation; of ``drq`` the features of the critics' encoder. For
    `log_std`, ``squash`` or ``clamp``, and its bounds see `rlplast.agents.losses.between`.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        trunk: TrunkSpec,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        log_std: str = "squash",
    ) -> None:
        drq = trunk.kind == "drq"
        d_in = trunk.features if drq else obs_dim
        super().__init__(d_in, trunk, {"mean": action_dim, "log_std": action_dim})
        self.projection = Projection(obs_dim, d_in) if drq else None
        self.log_std_how, self.bounds = log_std, (log_std_min, log_std_max)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std, (batch, action_dim), at least float32, of (batch, obs_dim)."""
        hidden = self._hidden(obs if self.projection is None else self.projection(obs))
        mean, log_std = (at_least_float32(self.get_submodule(head)(hidden)) for head in self.heads)
        return mean, between(log_std, self.log_std_how, *self.bounds)


class Critic(TrunkNetwork):
    """Values of an action by every member of an ensemble, in one batched computation.

    With pictures (``drq``) its members share an encoder and a projection of what it gives. It takes
    pictures, or features that its encoder has given already: `obs_dim` of them. A linear head gives
    `bins` logits, or a number.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        trunk: TrunkSpec,
        members: int = 2,
        encoder: Encoder | None = None,
        bins: int | None = None,
    ) -> None:
        drq = trunk.kind == "drq"
        d_in = trunk.features if drq else obs_dim
        super().__init__(d_in + action_dim, trunk, {"head": bins or 1}, members)
        self.members, self.encoder, self.bins = members, encoder, bins
        self.projection = Projection(obs_dim, d_in) if drq else None

    def _before_trunk(self) -> list[str]:
        convs = [] if self.encoder is None else [f"encoder.{n}" for n in self.encoder.order]
        return [*convs, *super()._before_trunk()]

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer, and of the encoder's convolutions."""
        # The actor reads the last convolution too; what it reads is not edited with a unit.
        convs = [] if self.encoder is None else self.encoder.unit_specs_before("projection.linear")
        return [*convs, *super().unit_specs()]

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values, (members, batch), or logits, (members, batch, bins), at least float32.

        They are of observations (batch, *obs_shape), or of features (batch, features), and actions
        (batch, action_dim) in [−1, 1].
        """
        if self.encoder is not None and obs.ndim > 2:
            obs = self.encoder(obs)
        if self.projection is not None:
            obs = self.projection(obs)
        x, head = torch.cat([obs, action], dim=-1), self.get_submodule("head")
        if self._one_by_one(x):
            hidden = [self._hidden(x, i) for i in range(self.members)]
            values = torch.stack([computed(head, each, i) for i, each in enumerate(hidden)])
        else:
            values = at_least_float32(head(self._hidden(x)))
        return values.squeeze(-1) if self.bins is None else values

    def _one_by_one(self, x: Tensor) -> bool:
        """Whether members are computed one after the other: in compiled float32 code on a CPU."""
        # Products of matrices, unlike batched ones, need no copies between their layouts. Layers in
        # which a method acts have all members at once.
        layers = [self.get_submodule(name) for name in (*self._trunk_order(), *self.heads)]
        return (
            torch.compiler.is_compiling()
            and x.is_cpu
            and x.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and all(map(is_plain, layers))
        )


class Temperature(nn.Module):
    """The weight α of the entropy, as the exponential of its one parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(initial)))

    def forward_order(self) -> Order:
        """Return no layer: there is none."""
        return []

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Return log(initial); nothing is drawn."""
        return torch.full(block.view.shape, math.log(self.initial))

    def forward(self) -> Tensor:
        """Return α, shape (1,)."""
        return self.log_alpha.exp()


def critic_of(
    agent: Any, obs_shape: Sequence[int], action_dim: int, obs_scale: float = 1 / 255, seed: int = 0
) -> nn.Module:
    """Return the critics of a SAC's section ``agent``.

    Raises:
        ConfigError: if the network does not fit the observations, or a user's function fails.
    """
    bins = agent.values and agent.values.bins
    if is_factory(agent.network):
        return user_critics(agent.network, obs_shape, action_dim, agent.critics, bins, seed)
    axes = 3 if agent.network == "drq" else 1
    if len(obs_shape) != axes:
        what = "pictures (bytes with two or three axes)" if axes == 3 else "vectors"
        others = "a function of yours" if axes == 3 else "drq, for pictures"
        raise ConfigError(
            f"agent.network = {agent.network!r} needs {what}, this environment gives shape "
            f"{tuple(obs_shape)}: use another network, such as {others}"
        )
    trunk, encoder, obs_dim = TrunkSpec.of(agent, "critic"), None, obs_shape[0]
    if agent.network == "drq":
        encoder = Encoder(obs_shape, trunk.convs, trunk.activation, obs_scale)
        encoder.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        obs_dim = encoder.features
    return Critic(obs_dim, action_dim, trunk, agent.critics, encoder, bins)


def actor_of(
    agent: Any, obs_shape: Sequence[int], action_dim: int, critic: nn.Module, seed: int = 0
) -> nn.Module:
    """Return the actor of a SAC's section ``agent``; of pictures it reads the critics' features."""
    low, high, how = agent.log_std_min, agent.log_std_max, agent.log_std
    if is_factory(agent.network):
        return user_actor(agent.network, obs_shape, action_dim, (how, low, high), seed)
    encoder = getattr(critic, "encoder", None)
    obs_dim = obs_shape[0] if encoder is None else encoder.features
    return Actor(obs_dim, action_dim, TrunkSpec.of(agent, "actor"), low, high, how)
