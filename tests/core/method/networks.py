"""Modules as a SAC has them: two with layers, one with a follower, and one number."""

import copy

import torch
from torch import Tensor, nn

from rlplast.core.network.network import Network
from tests.models import build


class Temperature(nn.Module):
    """One number and no layer, as in SAC."""

    def __init__(self) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


def modules() -> dict[str, tuple[nn.Module, ...]]:
    critic = build("stacked")
    return {
        "actor": (build("mlp"),),
        "critic": (critic, copy.deepcopy(critic)),
        "temperature": (Temperature(),),
    }


def networks() -> dict[str, Network]:
    return {
        name: Network(name, m[0], torch.optim.Adam(m[0].parameters()))
        for name, m in modules().items()
    }
