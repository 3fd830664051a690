"""Networks of PPO: a policy and a value, which share no layer.

Source: sizes and initializers of Stable-Baselines3's ``MlpPolicy`` and ``CnnPolicy``, whose shared
convolutions each of the two has here for itself. So hooks may reset either one alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.agents.networks import Architecture, QNetwork, architecture_of
from rlplast.core.network.blocks import Block

__all__ = ["PolicyNetwork", "ValueNetwork", "policy_architecture"]


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
