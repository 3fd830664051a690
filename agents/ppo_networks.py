"""Networks of PPO: a policy and a value, apart or on one trunk; ours, and those of users.

Source: sizes and initializers of Stable-Baselines3's ``MlpPolicy`` and ``CnnPolicy``.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlplast.agents.networks import Architecture, QNetwork, architecture_of, orthogonal
from rlplast.agents.own_trunks import ACTOR, CRITIC, head, making, order_with_heads
from rlplast.core.network.blocks import Block
from rlplast.core.network.order import Order
from rlplast.core.network.own import is_factory, own_initializer
from rlplast.core.network.units import UnitSpec
from rlplast.core.rng import derive_seed

__all__ = [
    "OwnNetwork",
    "PolicyNetwork",
    "SharedNetwork",
    "ValueNetwork",
    "networks_of",
    "policy_architecture",
]


class PolicyNetwork(QNetwork):
    """Logits of discrete actions, or means of continuous ones; see `QNetwork`.

    Continuous ones have a parameter ``log_std`` beside them: log σ, (action_dim,), which no
    observation moves; it begins with `log_std`.
    """

    head_gains: ClassVar[dict[str, float]] = {"head": 0.01}
    log_std: nn.Parameter | None

    def __init__(
        self,
        arch: Architecture,
        obs_shape: Sequence[int],
        outputs: int,
        obs_scale: float = 1.0,
        init: str = "orthogonal",
        log_std: float | None = None,
    ) -> None:
        super().__init__(arch, obs_shape, outputs, obs_scale, init)
        self.initial = log_std
        value = None if log_std is None else nn.Parameter(torch.full((outputs,), log_std))
        self.register_parameter("log_std", value)

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block by this network's initializer; for log σ nothing is drawn."""
        if block.name == "log_std" and self.initial is not None:
            return torch.full(block.view.shape, self.initial)
        return super().init_block(block, generator)


class ValueNetwork(QNetwork):
    """The value of an observation; see `QNetwork`."""

    def __init__(
        self,
        arch: Architecture,
        obs_shape: Sequence[int],
        obs_scale: float = 1.0,
        init: str = "orthogonal",
    ) -> None:
        super().__init__(arch, obs_shape, 1, obs_scale, init)


class SharedNetwork(PolicyNetwork):
    """A policy, and a value from the same trunk as its last output; see `PolicyNetwork`."""

    head_gains: ClassVar[dict[str, float]] = {"head": 0.01, "value": 1.0}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.value = nn.Linear(self.get_submodule("head").in_features, 1)
        self.choices = self.get_submodule("head").out_features  # read by metrics of outputs

    def forward_order(self) -> Order:
        """Return the layers' names in forward order; heads, side by side, last."""
        return [*self.order[:-1], ("head", "value")]

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer, the last of which both heads read."""
        specs = super().unit_specs()
        return [*specs[:-1], *(replace(last, downstream=("head", "value")) for last in specs[-1:])]

    def forward(self, obs: Tensor) -> Tensor:
        """Return (batch, outputs + 1)."""
        x = self._hidden(obs)
        return torch.cat([self.get_submodule("head")(x), self.value(x)], 1)


class OwnNetwork(nn.Module):
    """A trunk that a user's function makes, below heads of ours: a policy, a value, or both.

    The function gets `obs_shape` by name and returns two modules, the trunk of the actor and that
    of the critic, or one for both. Each gets float32 observations, (batch, *obs_shape), and returns
    (batch, any number). `part` says which of the two, `ACTOR` or `CRITIC`; None for the only one.
    """

    of_user = True
    log_std: nn.Parameter | None

    def __init__(
        self,
        name: str,
        part: int | None,
        obs_shape: Sequence[int],
        outputs: int,
        obs_scale: float = 1.0,
        seed: int = 0,
        log_std: float | None = None,
    ) -> None:
        super().__init__()
        self.obs_scale = obs_scale
        self.initial = log_std = None if part == CRITIC else log_std
        shape = tuple(obs_shape)
        make, width = making(name, part, (torch.zeros(2, *shape),), seed, obs_shape=shape)
        self.net = make(seed)
        self.head = head(width, 1 if part == CRITIC else outputs)
        self.value = head(width, 1) if part is None else None
        self.choices = self.head.out_features  # read by metrics of outputs
        ours = {ACTOR: PolicyNetwork, CRITIC: ValueNetwork, None: SharedNetwork}[part]
        self.gains = ours.head_gains
        value = None if log_std is None else nn.Parameter(torch.full((outputs,), log_std))
        self.register_parameter("log_std", value)
        self._init_trunk = own_initializer(lambda seed: nn.ModuleDict({"net": make(seed)}))

    def forward_order(self) -> Order | None:
        """Return the layers' names in forward order, heads side by side last; None if unknown."""
        heads = ("head",) if self.value is None else ("head", "value")
        return order_with_heads("net", self.net, *heads)

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block: the trunk's as its function does, the others as our networks' are."""
        if block.name == "log_std" and self.initial is not None:
            return torch.full(block.view.shape, self.initial)
        if block.path in self.gains:
            return orthogonal(block, generator, self.gains[block.path])
        return self._init_trunk(block, generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits, means or values, (batch, outputs); with one trunk a value comes last."""
        obs = obs.float()
        hidden = self.net(obs * self.obs_scale if self.obs_scale != 1.0 else obs).float()
        if self.value is None:
            return self.head(hidden)
        return torch.cat([self.head(hidden), self.value(hidden)], 1)


def networks_of(
    agent: Any,
    obs_shape: Sequence[int],
    outputs: int,
    obs_scale: float = 1.0,
    log_std: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the networks of a PPO's section ``agent``, by name; see `PolicyNetwork`."""
    if is_factory(agent.network):
        parts = {"actor_critic": None} if agent.shared_trunk else {"actor": ACTOR, "critic": CRITIC}
        network = partial(OwnNetwork, agent.network, log_std=log_std)
        return {
            name: network(part, obs_shape, outputs, obs_scale, derive_seed(seed, name))
            for name, part in parts.items()
        }
    arch = policy_architecture(agent, obs_shape)
    policy = arch, obs_shape, outputs, obs_scale, agent.init, log_std
    made = (
        {"actor_critic": SharedNetwork(*policy)}
        if agent.shared_trunk
        else {
            "actor": PolicyNetwork(*policy),
            "critic": ValueNetwork(arch, obs_shape, obs_scale, agent.init),
        }
    )
    for module in made.values() if arch.convs else ():
        module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return made


def policy_architecture(agent: Any, obs_shape: Sequence[int]) -> Architecture:
    """Return the trunk of a PPO's networks; see `architecture_of`."""
    usual = "relu" if len(obs_shape) == 3 else "tanh"
    architecture = architecture_of(agent, obs_shape, auto="mlp_small")
    return replace(architecture, activation=agent.activation or usual)
