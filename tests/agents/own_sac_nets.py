"""Trunks of a SAC as a user would write them."""

from collections.abc import Callable
from typing import Any

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
    def __init__(self, channels: int, action_dim: int = 0) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
        self.hidden = nn.LazyLinear(8)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        x = self.seen(obs)
        return self.hidden(x if action is None else torch.cat([x, action], 1)).relu()


def pictures(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return OfPictures(obs_shape[0]), OfPictures(obs_shape[0], action_dim)


def one(obs_shape: tuple[int, ...], action_dim: int) -> Any:
    return layers(obs_shape[0])


def flat(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return ending(obs_shape, action_dim, Tensor.flatten)


def no_action(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return layers(obs_shape[0]), layers(obs_shape[0])


def untrained(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return nn.Identity(), Joined(obs_shape[0] + action_dim)


BODY = nn.Linear(3, 3)


class OverBody(nn.Module):
    """A trunk over a body that all of them share."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body, self.layers = BODY, layers(size)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        x = self.body(obs)
        return self.layers(x if action is None else torch.cat([x, action], 1))


def shared_body(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return OverBody(obs_shape[0]), OverBody(obs_shape[0] + action_dim)


CALLS = [0]


def grows(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    CALLS[0] += 1
    actor = nn.Sequential(nn.Linear(obs_shape[0], 4 + CALLS[0]), nn.ReLU())
    return actor, Joined(obs_shape[0] + action_dim)


def in_place(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    actor, critic = mlp(obs_shape, action_dim)
    return nn.Sequential(Last(lambda x: x.sub_(0.5)), actor), critic


def unused_lazy(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    actor, critic = mlp(obs_shape, action_dim)
    actor.spare = nn.LazyLinear(3)
    actor.forward = actor[:4].forward
    return actor, critic


def no_outputs(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return ending(obs_shape, action_dim, lambda x: x[:, :0])


class Last(nn.Module):
    """Ends a trunk with what a function makes of its outputs."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


def ending(obs_shape: tuple[int, ...], action_dim: int, change: Callable[[Tensor], Tensor]) -> Pair:
    actor, critic = mlp(obs_shape, action_dim)
    return nn.Sequential(actor, Last(change)), critic


def whole_numbers(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return ending(obs_shape, action_dim, Tensor.long)


def doubles(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return ending(obs_shape, action_dim, Tensor.double)


def batch_norm(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    actor = nn.Sequential(nn.Linear(obs_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU())
    return actor, mlp(obs_shape, action_dim)[1]


class Coupled(nn.Module):
    """Begins at zero: two layers of the same weights, one less the other."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, 8), nn.Linear(size, 8)
        self.b.load_state_dict(self.a.state_dict())
        self.register_buffer("features", torch.randn(8))

    def forward(self, obs: Tensor) -> Tensor:
        return self.a(obs) - self.b(obs) + 0 * self.features


def coupled(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return Coupled(obs_shape[0]), Joined(obs_shape[0] + action_dim)


def of_numpy(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    actor, critic = mlp(obs_shape, action_dim)
    scale = float(np.random.default_rng(np.random.randint(1000)).normal())
    with torch.no_grad():
        actor[0].weight.mul_(scale)
    return actor, critic


class DependsOnData(nn.Module):
    """It cannot be traced."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 16)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, 1)
        return self.layer(x if x.sum() > 0 else -x).relu()


def depends_on_data(obs_shape: tuple[int, ...], action_dim: int) -> Pair:
    return DependsOnData(obs_shape[0]), DependsOnData(obs_shape[0] + action_dim)
