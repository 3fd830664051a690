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
    RULES,
    allocate,
    averages,
    load_optimizer_tensors,
    optimizer_tensors,
    shared,
    zero_all,
)
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from tests.marks import optimizers
from tests.models import assert_same
from tests.optimizers.drives import Mixed, drive

UPDATES = 12
# One of each kind of state: of one tensor and two, of several optimizers, and drawn or shared.
FAST = ("adam", "muon", "rmsprop", "schedule_free", "sgd", "trac", "upgd")


def made(name: str, start: nn.Module | None = None) -> Network:
    module = Mixed()
    if start is not None:
        module.load_state_dict(start.state_dict())
    momentum = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    params = {"centered": True} if name == "rmsprop" else {}
    config = OptimizerConfig(name, lr=0.01, params=params, **momentum)  # type: ignore[arg-type]
    return Network("net", module, Updater(config, module, 3).optimizers)


def driven(network: Network, updates: int, seed: int) -> dict[str, Tensor]:
    """Update; return the weights, in training and as evaluations use them."""
    drive(network.module, *network.optimizers, updates=updates, seed=seed, mean=0.0)
    weights = {n: t.clone() for n, t in network.module.state_dict().items()}
    with swapped(averages(network)):
        return weights | {f"{n} average": t.clone() for n, t in network.module.state_dict().items()}


@pytest.mark.parametrize("name", optimizers(FAST))
def test_state_goes_on_saved_by_name_or_as_torch_does_and_a_reset_is_a_new_optimizer(
    name: str, tmp_path: Path
) -> None:
    for updates in (1, UPDATES):
        network = made(name)
        driven(network, updates, 1)
        assert all(type(optimizer) in RULES for optimizer in network.optimizers)
        by_name, by_torch = (made(name, network.module) for _ in range(2))
        load_optimizer_tensors(by_name, copy.deepcopy(optimizer_tensors(network)))
        for optimizer, other in zip(network.optimizers, by_torch.optimizers, strict=True):
            torch.save(optimizer.state_dict(), tmp_path / "state")
            other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        expected = driven(network, 5, 2)
        for copied in (by_name, by_torch):
            assert_same(expected, driven(copied, 5, 2))
            assert_same(optimizer_tensors(network), optimizer_tensors(copied))
    zero_all(network)
    new = made(name, network.module)
    allocate(new)
    for optimizer in new.optimizers:
        if DRAWN in shared(optimizer):
            shared(optimizer)[DRAWN].fill_(UPDATES + 5)  # no draw is repeated
    assert_same(optimizer_tensors(network), optimizer_tensors(new))
    assert_same(driven(network, 5, 2), driven(new, 5, 2))
