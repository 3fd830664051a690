"""One case per registered penalty, and the models it is tried on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.method.penalties import Penalties
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng
from tests.models import FAMILIES
from tests.naive.penalties import (
    l2_init_twin,
    l2_twin,
    parseval_twin,
    spectral_twin,
    wasserstein_twin,
)

__all__ = ["CASES", "MODELS", "TWINS", "PenaltyCase", "moved", "penalties", "row"]


@dataclass(frozen=True)
class PenaltyCase:
    """How the tests use a penalty.

    Attributes:
        params: its parameters.
        twin: its slow twin: (module, module with the initial weights, **params) → value; None of
            one that reads batches, whose tests are its own.
    """

    params: Mapping[str, Any]
    twin: Callable[..., Tensor] | None


CASES: dict[str, PenaltyCase] = {
    "l2": PenaltyCase({"coef": 0.3}, l2_twin),
    "l2_init": PenaltyCase({"coef": 0.7}, l2_init_twin),
    "parseval": PenaltyCase({"coef": 0.2, "scale": 1.5}, parseval_twin),
    "spectral": PenaltyCase({"coef": 0.1, "power": 2}, spectral_twin),
    "wasserstein": PenaltyCase({"coef": 0.5}, wasserstein_twin),
    "c_chain": PenaltyCase({"coef": 0.5, "beta": 0.1, "batch": 4}, None),
    "l2_er": PenaltyCase({"coef": 0.01, "rank_coef": 0.01, "batch": 4}, None),
    "infer": PenaltyCase({"coef": 0.5, "heads": 3, "batch": 4}, None),
    "sigreg": PenaltyCase({"coef": 0.5, "slices": 3, "batch": 4}, None),
}
TWINS = {name: case.twin for name, case in CASES.items() if case.twin is not None}


class Transposed(nn.Module):
    """A linear layer that stores its weight (d_in, d_out), as GPT-2's own code does."""

    stored_transposed = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.bias = nn.Parameter(torch.zeros(6))

    def block_specs(self) -> list[BlockSpec]:
        return [
            BlockSpec("weight", "weight", "linear", fan_in=4, fan_out=6, transposed=True),
            BlockSpec("bias", "bias", "linear"),
        ]


class Attention(nn.Module):
    """Both packed layouts: a linear that holds q, k and v, and torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(4, 12)
        self.c_attn.packed = True
        self.attention = nn.MultiheadAttention(4, 2)


MODELS: dict[str, Callable[[], nn.Module]] = FAMILIES | {
    "packed": Attention,
    "transposed": lambda: nn.Sequential(Transposed(), nn.Linear(6, 2)),
    "grouped": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 6, 3, groups=6)),
}


def moved(family: str, seed: int = 0) -> tuple[Network, nn.Module]:
    """Return a network away from its initial weights, and a module that still has those."""
    with preserve_global_rng():
        torch.default_generator.manual_seed(seed)
        module = MODELS[family]()
        start = copy.deepcopy(module)
        network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
        with torch.no_grad():
            for param in module.parameters():
                param.add_(torch.randn_like(param), alpha=0.3)
    return network, start


def row(method: str, **keys: Any) -> dict[str, Any]:
    """Return a config's row for a method, with its case's parameters."""
    return {"method": method, "params": dict(CASES[method].params)} | keys


def penalties(method: str, network: Network, **keys: Any) -> Penalties:
    return Penalties([row(method, **keys)], {network.name: network})
