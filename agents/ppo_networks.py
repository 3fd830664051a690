"""Networks of PPO: a policy and a value, which share no layer; ours, and those of users.

Source: sizes and initializers of Stable-Baselines3's ``MlpPolicy`` and ``CnnPolicy``, whose shared
convolutions each of the two has here for itself. So hooks may reset either one alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.networks import Architecture, QNetwork, architecture_of, orthogonal
from rlplast.agents.own_trunks import ACTOR, CRITIC, head, making
from rlplast.core.network.blocks import Block
from rlplast.core.network.own import is_factory, own_initializer
from rlplast.core.rng import derive_seed

__all__ = [
    "OwnNetwork",
    "PolicyNetwork",
    "ValueNetwork",
    "policy_and_value",
    "policy_architecture",
]


class PolicyNetwork(QNetwork):
    """Logits of discrete actions, or means of continuous ones.

    Continuous ones have a parameter ``log_std`` beside them: log σ, (action_dim,), which no
    observation moves.

    Args:
        arch: the trunk.
        obs_shape: shape of one (stacked) observation.
        outputs: discrete actions, or entries of a continuous one.
        obs_scale: factor on observations, 1/255 for frames.
        init: as in `QNetwork`; the head's gain is 0.01.
        log_std: log σ at the start; None for discrete actions.
    """

    head_gain = 0.01
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


class OwnNetwork(nn.Module):
    """A trunk that a user's function makes, below a head of ours: a policy, or a value.

    The function gets `obs_shape` by name and returns two modules, the trunk of the actor and that
    of the critic. Each gets float32 observations, (batch, *obs_shape), and returns (batch, any
    number).

    Args:
        name: ``package.module:factory``.
        part: which of the two trunks, `ACTOR` or `CRITIC`.
        obs_shape: shape of one (stacked) observation.
        outputs: of the head: discrete actions, entries of a continuous one, or 1.
        obs_scale: factor on observations, 1/255 for frames.
        seed: that buffers are drawn from.
        log_std: log σ at the start, for continuous actions; else None.
    """

    of_user = True
    log_std: nn.Parameter | None

    def __init__(
        self,
        name: str,
        part: int,
        obs_shape: Sequence[int],
        outputs: int,
        obs_scale: float = 1.0,
        seed: int = 0,
        log_std: float | None = None,
    ) -> None:
        super().__init__()
        self.obs_scale, self.initial = obs_scale, log_std
        self.gain = (PolicyNetwork if part == ACTOR else ValueNetwork).head_gain
        shape = tuple(obs_shape)
        make, width = making(name, part, (torch.zeros(2, *shape),), seed, obs_shape=shape)
        self.net, self.head = make(seed), head(width, outputs)
        value = None if log_std is None else nn.Parameter(torch.full((outputs,), log_std))
        self.register_parameter("log_std", value)
        self._init_trunk = own_initializer(lambda seed: nn.ModuleDict({"net": make(seed)}))

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block: the trunk's as its function does, the others as our networks' are."""
        if block.name == "log_std" and self.initial is not None:
            return torch.full(block.view.shape, self.initial)
        if block.path == "head":
            return orthogonal(block, generator, self.gain)
        return self._init_trunk(block, generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits, means or values, (batch, outputs)."""
        obs = obs.float()
        hidden = self.net(obs * self.obs_scale if self.obs_scale != 1.0 else obs)
        return self.head(hidden.float())


def policy_and_value(
    agent: Any,
    obs_shape: Sequence[int],
    outputs: int,
    obs_scale: float = 1.0,
    log_std: float | None = None,
    seed: int = 0,
) -> tuple[PolicyNetwork | OwnNetwork, ValueNetwork | OwnNetwork]:
    """Return the networks of a PPO's config.

    Args:
        agent: its section ``agent``.
        obs_shape: shape of one (stacked) observation.
        outputs: discrete actions, or entries of a continuous one.
        obs_scale: factor on observations.
        log_std: log σ at the start; None for discrete actions.
        seed: that buffers of a user's networks are drawn from.
    """
    if is_factory(agent.network):
        own = partial(OwnNetwork, agent.network, obs_shape=obs_shape, obs_scale=obs_scale)
        actor = own(ACTOR, outputs=outputs, seed=derive_seed(seed, "actor"), log_std=log_std)
        return actor, own(CRITIC, outputs=1, seed=derive_seed(seed, "critic"))
    arch = policy_architecture(agent, obs_shape)
    actor = PolicyNetwork(arch, obs_shape, outputs, obs_scale, agent.init, log_std)
    made = actor, ValueNetwork(arch, obs_shape, obs_scale, agent.init)
    for module in made if arch.convs else ():
        module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return made


def policy_architecture(agent: Any, obs_shape: Sequence[int]) -> Architecture:
    """Return the trunk of both networks of a PPO's config.

    Args:
        agent: its section ``agent``.
        obs_shape: shape of one (stacked) observation.

    Raises:
        ConfigError: for convolutions on flat observations.
    """
    found = architecture_of(agent, obs_shape, auto="mlp_small")
    usual = "relu" if len(obs_shape) == 3 else "tanh"
    return replace(found, activation=agent.activation or usual)
