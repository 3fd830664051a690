"""Trunks of a PPO as a user would write them."""

from typing import Any

import torch
from torch import Tensor, nn

Pair = tuple[nn.Module, nn.Module]


def layers(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())


def one(obs_shape: tuple[int, ...]) -> Any:
    return layers(obs_shape[0])


def mlp(obs_shape: tuple[int, ...]) -> Pair:
    return layers(obs_shape[0]), layers(obs_shape[0])


def one_of_pictures(obs_shape: tuple[int, ...]) -> Any:
    convs = [nn.Conv2d(obs_shape[0], 4, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convs, nn.LazyLinear(8), nn.ReLU())


def pictures(obs_shape: tuple[int, ...]) -> Pair:
    return one_of_pictures(obs_shape), one_of_pictures(obs_shape)


def one_batch_norm(obs_shape: tuple[int, ...]) -> Any:
    return nn.Sequential(nn.Linear(obs_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU())


def batch_norm(obs_shape: tuple[int, ...]) -> Pair:
    return one_batch_norm(obs_shape), one_batch_norm(obs_shape)


class Noisy(nn.Module):
    """A trunk whose path depends on its data, that drops units and has a buffer that is drawn."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(size, 16), nn.Dropout(0.1)
        self.register_buffer("features", torch.randn(size))

    def forward(self, obs: Tensor) -> Tensor:
        x = obs + 0.1 * self.features  # type: ignore[operator]
        if x.abs().max() > 10:
            x = x / 10
        return self.drop(self.layer(x).tanh())


def noisy(obs_shape: tuple[int, ...]) -> Pair:
    return Noisy(obs_shape[0]), Noisy(obs_shape[0])


def frozen_body(obs_shape: tuple[int, ...], trained: bool = False) -> Pair:
    body = nn.Linear(obs_shape[0], 4).requires_grad_(trained)
    return nn.Sequential(body, layers(4)), nn.Sequential(body, layers(4))
