"""Our own networks, small, each with what it reads."""

from typing import Any

import torch
from torch import Tensor

from rlplast.agents.networks import ARCHITECTURES, QNetwork
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.agents.trunks import RESIDUAL
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.methods.nets import normal

Q_SHAPES = {"nature": (4, 84, 84), "minatar": (4, 10, 10), "mlp": (6,)}
OWN = (
    *(f"q {name}" for name in Q_SHAPES),
    *(f"{who} {kind}" for who in ("actor", "critic") for kind in ("mlp", *RESIDUAL)),
    "gpt",
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=torch.float32)


def own(which: str) -> tuple[Any, tuple[Tensor, ...]]:
    """Return a network of `OWN`, and inputs for it."""
    if which == "gpt":
        return GPT(GPTModelConfig(2, 3, 12, 8, 16, bias=True)), (torch.arange(10).view(2, 5),)
    who, kind = which.split()
    if who == "q":
        return QNetwork(ARCHITECTURES[kind], Q_SHAPES[kind], 4), (drawn(4, *Q_SHAPES[kind]),)
    trunk, obs, action = TrunkSpec(kind, 8, 2), drawn(4, 5), drawn(4, 3, seed=1)
    return (Actor(5, 3, trunk), (obs,)) if who == "actor" else (Critic(5, 3, trunk), (obs, action))
