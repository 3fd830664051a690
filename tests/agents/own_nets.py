"""Networks as a user would write them."""

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


class Noisy(nn.Module):
    """Draws from the global generator in each pass; two layers have one weight."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(obs_shape[0], 8), nn.Linear(8, 8)
        self.third, self.head = nn.Linear(8, 8), nn.LazyLinear(num_actions)
        self.third.weight = self.second.weight

    def forward(self, obs: Tensor) -> Tensor:
        x = self.second(self.first(obs + 0.1 * torch.randn_like(obs)).relu()).relu()
        return self.head(self.third(x).relu())


def classifier(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    convs = [nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convs, nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, num_classes))
