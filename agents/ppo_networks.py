"""Networks of PPO: a policy and a value, apart or on one trunk; ours, and those of users.

Source: sizes and initializers of Stable-Baselines3's ``MlpPolicy`` and ``CnnPolicy``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlplast.agents.networks import Architecture, QNetwork, architecture_of
from rlplast.agents.user_networks import user_network
from rlplast.core.network.blocks import Block
from rlplast.core.network.factory import is_factory
from rlplast.core.network.order import Order
from rlplast.core.network.units import UnitSpec
from rlplast.core.rng import derive_seed

__all__ = [
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
        policy, value = {"head": (outputs, 0.01)}, {"head": (1, 1.0)}
        start = None if log_std is None else torch.full((outputs,), log_std)
        parts = {"actor": (0, policy, start), "critic": (1, value, None)}
        if agent.shared_trunk:
            parts = {"actor_critic": (None, policy | {"value": (1, 1.0)}, start)}
        return {
            name: user_network(
                agent.network, part, obs_shape, heads, obs_scale, first, derive_seed(seed, name)
            )
            for name, (part, heads, first) in parts.items()
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
