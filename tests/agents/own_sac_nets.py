"""Trunks of a SAC as a user would write them."""

import numpy as np
import torch
from torch import Tensor, nn

Pair = tuple[nn.Module, nn.Module]


def layers(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())


class Joined(nn.Module):
    """A trunk of a critic that puts observation and action side by side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = layers(size)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([obs, action], 1))


def mlp(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return layers(obs_shape[0]), Joined(obs_shape[0] + action_dim)


class OfPictures(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
        self.hidden = nn.LazyLinear(8)

    def forward(self, obs: Tensor, *action: Tensor) -> Tensor:
        return self.hidden(torch.cat([self.seen(obs), *action], 1)).relu()


def pictures(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return OfPictures(obs_shape[0]), OfPictures(obs_shape[0])


class Coupled(nn.Module):
    """Begins at zero, with a draw of NumPy: two layers of the same weights, one less the other."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, 8), nn.Linear(size, 8)
        self.a.weight.data *= float(np.random.default_rng(np.random.randint(1000)).normal())
        self.b.load_state_dict(self.a.state_dict())
        self.register_buffer("features", torch.randn(8))

    def forward(self, obs: Tensor) -> Tensor:
        return self.a(obs) - self.b(obs) + 0 * self.features


def coupled(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return Coupled(obs_shape[0]), Joined(obs_shape[0] + action_dim)


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.double()


class DependsOnData(nn.Module):
    """It cannot be traced, and gives doubles."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 16)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, 1)
        return self.layer(x if x.sum() > 0 else -x).relu().double()


def depends_on_data(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return DependsOnData(obs_shape[0]), DependsOnData(obs_shape[0] + action_dim)


def batch_norm(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    actor = nn.Sequential(nn.Linear(obs_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), Doubles())
    return actor, depends_on_data(obs_shape, action_dim)[1]
