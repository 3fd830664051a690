"""Networks of a user that change as they are called, in evaluation mode too."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Restless(nn.Module):
    """Counts its calls, in a buffer and beside it, and adds noise that grows with their number."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.calls.add_(1)
        return x + 1e-3 * self.calls * torch.randn(())


class Unsaved(nn.Module):
    """Puts another tensor into its buffer, keeps its input, and draws where nothing is saved."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, x
        return x + 1e-3 * np.random.rand() + 1e-3 * random.random()


def layers(size: int, *ends: nn.Module) -> nn.Sequential:
    hidden = [nn.Linear(size, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(Restless(), *hidden, nn.Linear(8, 8), nn.ReLU(), *ends)


class Joined(nn.Module):
    """The trunk of a critic."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = layers(size)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([obs, action], 1))


def of_dqn(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return layers(obs_shape[0], nn.Linear(8, num_actions))


def of_sac(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), Joined(obs_shape[0] + action_dim)


def of_ppo(obs_shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), layers(obs_shape[0])


def of_ppo_shared(obs_shape: tuple[int, ...]) -> nn.Module:
    return layers(obs_shape[0])


def of_pictures(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), layers(size, nn.Linear(8, num_classes)))
