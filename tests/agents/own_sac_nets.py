"""Trunks of a SAC as a user would write them."""

from typing import Any

import torch
from torch import Tensor, nn


def layers(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())


class Joined(nn.Module):
    """A trunk of a critic that puts observation and action side by side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = layers(size)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([obs, action], 1))


def mlp(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), Joined(obs_shape[0] + action_dim)


class OfPictures(nn.Module):
    def __init__(self, channels: int, action_dim: int = 0) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
        self.hidden = nn.LazyLinear(8)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        x = self.seen(obs)
        return self.hidden(x if action is None else torch.cat([x, action], 1)).relu()


def pictures(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return OfPictures(obs_shape[0]), OfPictures(obs_shape[0], action_dim)


def one(obs_shape: tuple[int, ...], action_dim: int) -> Any:
    return layers(obs_shape[0])


def flat(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(layers(obs_shape[0]), nn.Flatten(0)), Joined(obs_shape[0] + action_dim)


def no_action(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), layers(obs_shape[0])


def untrained(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return nn.Identity(), Joined(obs_shape[0] + action_dim)
