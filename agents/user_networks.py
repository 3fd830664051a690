"""Networks of agents that a user's function makes: a DQN's whole, trunks of the others.

A trunk of a SAC or a PPO gets observations, that of a critic of SAC actions too, and returns
(batch, any number), which linear heads of ours read. The function returns two of them, the actor's
and a critic's, and is called anew for each network and each critic, which share nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.losses import between
from rlplast.core.errors import ConfigError
from rlplast.core.network.factory import checked, factory_of, made
from rlplast.core.network.network import Network
from rlplast.core.network.order import Order, forward_order

__all__ = ["user_actor", "user_critics", "user_network", "user_q"]

_KEY = "agent.network"
Shape = Sequence[int]


class _Headed(nn.Module):
    """A trunk below linear heads, each of which gives an output."""

    def __init__(self, trunk: nn.Module, width: int, heads: dict[str, int]) -> None:
        super().__init__()
        self.net, self.heads = trunk, [*heads]
        for name, outputs in heads.items():
            self.add_module(name, nn.Linear(width, outputs))
            # Known as a head also where the trunk cannot be traced.
            vars(self.get_submodule(name))["is_head"] = True

    def forward_order(self) -> Order | None:
        """Return the layers' names in forward order, heads side by side last; None if unknown."""
        try:
            order = forward_order(Network("net", self.net))
        except ConfigError:
            return None
        outer = [p for p in order if not any(p.startswith(f"{o}.") for o in order if o)]
        last = tuple(self.heads) if len(self.heads) > 1 else self.heads[0]
        return [*(f"net.{path}".rstrip(".") for path in outer), last]

    def outputs(self, *inputs: Tensor) -> list[Tensor]:
        """Return what each head gives, in float32."""
        hidden = self.net(*inputs).float()
        return [self.get_submodule(head)(hidden).float() for head in self.heads]


class _Actor(_Headed):
    def __init__(
        self, trunk: nn.Module, width: int, actions: int, log_std: tuple[str, float, float]
    ) -> None:
        super().__init__(trunk, width, {"mean": actions, "log_std": actions})
        self.log_std_range = log_std

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.outputs(obs)
        return mean, between(log_std, *self.log_std_range)


class _Joined(_Headed):
    """Outputs side by side, beside them a PPO's parameter ``log_std``."""

    log_std: nn.Parameter | None

    def __init__(
        self, trunk: nn.Module, width: int, heads: dict[str, int], log_std: Tensor | None
    ) -> None:
        super().__init__(trunk, width, heads)
        self.register_parameter("log_std", None if log_std is None else nn.Parameter(log_std))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.cat(self.outputs(obs), 1)


class _Critic(_Headed):
    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.outputs(obs, action)[0]


class _Critics(nn.Module):
    def __init__(self, critics: Sequence[nn.Module], bins: int | None) -> None:
        super().__init__()
        self.nets, self.bins = nn.ModuleList(critics), bins

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values, (members, batch), or logits, (members, batch, bins)."""
        values = torch.stack([net(obs, action) for net in self.nets])
        return values.squeeze(-1) if self.bins is None else values


def _scale(module: nn.Module, factor: float) -> None:
    """Let a module get float32 observations, times a factor."""

    def scaled(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        obs = inputs[0].float()
        return (obs * factor if factor != 1.0 else obs, *inputs[1:])

    module.register_forward_pre_hook(scaled)


def user_q(name: str, shape: Shape, actions: int, obs_scale: float, seed: int) -> nn.Module:
    """Return a DQN's network: of (batch, *shape) it gives (batch, actions)."""
    key, factory, inputs = f"{_KEY} = {name!r}", factory_of(_KEY, name), (torch.zeros(2, *shape),)

    def build() -> nn.Module:
        returned = factory(obs_shape=tuple(shape), num_actions=actions)
        module = checked(key, returned, inputs, actions)[0]
        _scale(module, obs_scale)
        return module

    return made(key, build, seed)


def user_actor(
    name: str, shape: Shape, actions: int, log_std: tuple[str, float, float], seed: int
) -> nn.Module:
    """Return a SAC's actor; see `rlplast.agents.sac_networks.Actor`."""
    spaces = {"obs_shape": tuple(shape), "action_dim": actions}
    trunk = _trunk(name, 0, (torch.zeros(2, *shape),), spaces)
    return made(_key(name, 0), lambda: _Actor(*trunk(), actions, log_std), seed)


def user_critics(
    name: str, shape: Shape, actions: int, members: int, bins: int | None, seed: int
) -> nn.Module:
    """Return a SAC's critics; see `rlplast.agents.sac_networks.Critic`."""
    spaces = {"obs_shape": tuple(shape), "action_dim": actions}
    trunk = _trunk(name, 1, (torch.zeros(2, *shape), torch.zeros(2, actions)), spaces)

    def build() -> nn.Module:
        return _Critics([_Critic(*trunk(), {"head": bins or 1}) for _ in range(members)], bins)

    return made(_key(name, 1), build, seed)


def user_network(
    name: str,
    part: int | None,
    shape: Shape,
    heads: dict[str, tuple[int, float]],
    obs_scale: float,
    log_std: Tensor | None,
    seed: int,
) -> nn.Module:
    """Return a PPO's network on the actor's trunk (`part` 0), the critic's (1), or the only one.

    A head has a size, and is orthogonal with a gain.
    """
    trunk = _trunk(name, part, (torch.zeros(2, *shape),), {"obs_shape": tuple(shape)})

    def build() -> nn.Module:
        sizes = {head: size for head, (size, _) in heads.items()}
        network: Any = _Joined(*trunk(), sizes, log_std)
        network.choices = sizes["head"]  # read by metrics of outputs
        _scale(network.net, obs_scale)
        for head, (_, gain) in heads.items():
            nn.init.orthogonal_(getattr(network, head).weight, gain)
            nn.init.zeros_(getattr(network, head).bias)
        return network

    return made(_key(name, part), build, seed)


def _key(name: str, part: int | None) -> str:
    trunks = ", the actor's trunk", ", the critics' trunk"
    which = " with agent.shared_trunk: true" if part is None else trunks[part]
    return f"{_KEY} = {name!r}{which}"


def _trunk(
    name: str, part: int | None, inputs: Sequence[Tensor], spaces: dict[str, Any]
) -> Callable[[], tuple[nn.Module, int]]:
    """Return what makes a trunk, and says how many numbers it gives."""
    key, factory = _key(name, part), factory_of(_KEY, name)
    if part is None:
        return lambda: checked(key, factory(**spaces), inputs)

    def one() -> tuple[nn.Module, int]:
        pair = factory(**spaces)
        if not isinstance(pair, tuple) or [isinstance(m, nn.Module) for m in pair] != [True] * 2:
            raise ConfigError(
                f"{key}: the function returned a {type(pair).__name__}: allowed is a "
                "pair of modules, the trunk of the actor and that of a critic (for PPO also one, "
                "with agent.shared_trunk: true)"
            )
        of_actor = {id(parameter) for parameter in pair[0].parameters()}
        for own, parameter in pair[1].named_parameters():
            if parameter.requires_grad and id(parameter) in of_actor:
                raise ConfigError(
                    f"{key}: actor and critic share {own}: give each layers of its own (a PPO may "
                    "have one trunk: set agent.shared_trunk: true and return one module)"
                )
        return checked(key, pair[part], inputs)

    return one
