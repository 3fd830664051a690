"""Every optimizer: what is saved goes on bit for bit, and a reset is a new optimizer."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.network.edits import swapped
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import (
    DRAWN,
    allocate,
    averages,
    load_optimizer_tensors,
    optimizer_tensors,
    shared,
    zero_all,
)
from rlplast.core.network.stacked import StackedLinear
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from tests.marks import optimizers
from tests.models import assert_same

UPDATES = 12
every_optimizer = pytest.mark.parametrize("name", optimizers())


class Mixed(nn.Module):
    """Tensors of zero to four dimensions; the kernel is in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)
        self.stacked = StackedLinear(2, 4, 5)
        self.linear, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.conv.to(memory_format=torch.channels_last)  # pyright: ignore


def made(name: str, start: nn.Module | None = None) -> Network:
    torch.random.default_generator.manual_seed(0)
    module = Mixed()
    if start is not None:
        module.load_state_dict(start.state_dict())
    momentum = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    updater = Updater(OptimizerConfig(name, lr=0.01, **momentum), module, 3)  # type: ignore[arg-type]
    return Network("net", module, updater.optimizers)


def driven(network: Network, updates: int, seed: int) -> dict[str, Tensor]:
    """Update along drawn gradients; return the weights, in training and as evaluations use them."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        for p in network.module.parameters():
            gradient = torch.randn(p.shape, generator=generator) * 1e-2
            p.grad = torch.empty_like(p).copy_(gradient)
        for optimizer in network.optimizers:
            optimizer.step()
    weights = {n: t.clone() for n, t in network.module.state_dict().items()}
    with swapped(averages(network)):
        return weights | {f"{n} average": t.clone() for n, t in network.module.state_dict().items()}


@every_optimizer
def test_state_goes_on_bit_for_bit_saved_by_name_or_as_torch_does(
    name: str, tmp_path: Path
) -> None:
    for updates in (1, UPDATES):
        network = made(name)
        driven(network, updates, 1)
        by_name, by_torch = (made(name, network.module) for _ in range(2))
        load_optimizer_tensors(by_name, copy.deepcopy(optimizer_tensors(network)))
        for optimizer, other in zip(network.optimizers, by_torch.optimizers, strict=True):
            torch.save(optimizer.state_dict(), tmp_path / "state")
            other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        expected = driven(network, 5, 2)
        for copied in (by_name, by_torch):
            assert_same(expected, driven(copied, 5, 2))
            assert_same(optimizer_tensors(network), optimizer_tensors(copied))


@every_optimizer
def test_a_reset_of_the_network_is_a_new_optimizer_that_repeats_no_draw(name: str) -> None:
    network = made(name)
    driven(network, UPDATES, 1)
    zero_all(network)
    new = made(name, network.module)
    allocate(new)
    for optimizer in new.optimizers:
        if DRAWN in shared(optimizer):
            shared(optimizer)[DRAWN].fill_(UPDATES)
    assert_same(optimizer_tensors(network), optimizer_tensors(new))
    assert_same(driven(network, 5, 2), driven(new, 5, 2))
