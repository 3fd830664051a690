"""Networks as a user would write them."""

from typing import Any

import torch
from torch import Tensor, nn


def mlp(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    size = obs_shape[0]
    return nn.Sequential(
        nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, num_actions)
    )


def batch_norm(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    size = obs_shape[0]
    return nn.Sequential(nn.Linear(size, 8), nn.BatchNorm1d(8), nn.Linear(8, num_actions))


class Residual(nn.Module):
    """A block of IMPALA's encoder (Espeholt et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x.relu()).relu())


def impala(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = obs_shape[0]
    for width in (4, 8):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(width), Residual(width)]
        channels = width
    head = [nn.ReLU(), nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, num_actions)]
    return nn.Sequential(*layers, *head)


class Transformer(nn.Module):
    """Cells of a picture as tokens, through one block of a transformer."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.embed = nn.Linear(channels, 8)
        self.place = nn.Parameter(torch.randn(height * width, 8) / 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        tokens = self.embed(obs.flatten(2).mT) + self.place
        return self.head(self.block(tokens).mean(1))


class Noisy(nn.Module):
    """Draws from the global generator in each pass."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.head = nn.Linear(obs_shape[0], num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        return self.head(obs + 0.1 * torch.randn_like(obs))


class Shared(nn.Module):
    """Two layers have one weight."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(obs_shape[0], 8), nn.Linear(8, 8)
        self.third, self.head = nn.Linear(8, 8), nn.Linear(8, num_actions)
        self.third.weight = self.second.weight

    def forward(self, obs: Tensor) -> Tensor:
        x = self.second(self.first(obs).relu()).relu()
        return self.head(self.third(x).relu())


class BuffersOnly(nn.Module):
    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(num_actions))

    def forward(self, obs: Tensor) -> Tensor:
        return self.values.expand(len(obs), -1)


def buffers_only(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return BuffersOnly(num_actions)


def wrong_shape(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return nn.Linear(obs_shape[0], num_actions + 1)


def no_module(obs_shape: tuple[int, ...], num_actions: int) -> Any:
    return [num_actions]


def fails(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return nn.Linear(obs_shape[0] + 1, num_actions)


def other_arguments(size: int) -> nn.Module:
    return nn.Linear(size, size)


def classifier(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(16),
        nn.ReLU(),
        nn.Linear(16, num_classes),
    )
