"""TRAC beside its algorithm in plain numbers; and that no edit of a weight is undone."""

import copy
import math

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from rlplast.core.errors import ConfigError
from rlplast.core.network.edits import Assign, Scale, write
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import shared
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.trac import Trac, erfi
from rlplast.optimizers.updater import Updater
from tests.firing import apply
from tests.naive.optimizers import NaiveTrac
from tests.optimizers import drives
from tests.optimizers.drives import drive, give_gradients, weights

FAR = 48  # updates after which the scale has grown from 1e-7 to about 0.2


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-13), (torch.float32, 2e-7)])
def test_erfi_is_scipys(dtype: torch.dtype, rtol: float):
    # Numbers of every size, near where the formula changes and where the result overflows.
    generator = torch.Generator().manual_seed(0)
    small = torch.tensor([0.0, 1e-300, 1e-12, 1e-8]).double()
    wide = 35 * torch.rand(5000, generator=generator, dtype=torch.float64)
    edges = [e + torch.linspace(-0.05, 0.05, 501) for e in (9.29, 10, 26.6417, 26.7137, 26.8328)]
    steps = torch.linspace(1e-3, 30, 3001).double()
    x = torch.cat([small, wide, steps, *edges, torch.tensor([1e3, 1e30, math.inf])]).to(dtype)
    x = torch.cat([x, -x])
    expected = torch.from_numpy(scipy.special.erfi(x.numpy()))
    found = erfi(x)
    assert found.dtype == expected.dtype == dtype
    assert expected.isinf().any() and expected.isfinite().sum() > len(x) / 4
    assert torch.equal(found.isinf(), expected.isinf())
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0)
    assert erfi(torch.tensor([math.nan], dtype=dtype)).isnan().all()


def linear(make=Adam, **options) -> tuple[nn.Sequential, Trac, Network]:
    module = drives.linear()
    optimizer = Trac(make(module.parameters(), lr=0.01, **options))
    return module, optimizer, Network("net", module, optimizer)


@pytest.mark.parametrize(("make", "options"), [(Adam, {}), (SGD, {"momentum": 0.9})])
def test_updates_are_the_papers(make, options):
    module, ours, _ = linear(make, **options)
    for p in module.parameters():
        p.data *= 1e-6  # beside larger ones the sources' θ − θref loses most digits at first
    other = copy.deepcopy(module)  # a base of its own, always put back to where ours is
    base = make(other.parameters(), lr=0.01, **options)
    theirs = NaiveTrac(weights(module).tolist())
    generator = torch.Generator().manual_seed(1)
    for _ in range(FAR):
        before = weights(module)
        give_gradients(module, generator)
        gradients = torch.cat([p.grad.flatten() for p in module.parameters()]).tolist()
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            q.data.copy_(p)
            q.grad = p.grad.clone()
        base.step()
        moves = (weights(other) - before).tolist()
        ours.step()
        expected = theirs.step(before.tolist(), gradients, moves)
        assert weights(module).tolist() == pytest.approx(expected, rel=1e-8)
    assert shared(ours)["s"].tolist() == pytest.approx(theirs.s, rel=1e-6)
    moved = np.array(expected) - np.array(theirs.reference)
    assert np.abs(moved).max() > 1e-3  # it has left: the comparison saw more than a standstill


def sevens(network: Network) -> Assign:
    block = network.blocks[0]
    mask = torch.zeros_like(block.view, dtype=torch.bool)
    mask[0] = True
    return Assign(block, torch.full_like(block.view, 7.0), mask)


def test_touched_entries_start_from_where_they_were_put():
    module, optimizer, network = linear(SGD)
    drive(module, optimizer, updates=FAR)
    apply(network, [sevens(network)], method="toy", optimizer="touched")
    before: Tensor = module[0].weight.detach().clone()
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    scale = shared(optimizer)["s"].sum()
    optimizer.step()
    assert torch.equal(module[0].weight[0], before[0])  # jump 0
    assert not torch.equal(module[0].weight[1], before[1])  # others: another scale
    assert scale != shared(optimizer)["s"].sum()


def test_a_weight_that_is_edited_goes_on_from_there():
    # what remembers moves on as without the edit: the reference moved with the weight
    found = {}
    for how in ("not", "assign", "scale", "inside an update"):
        module, optimizer, network = linear()
        drive(module, optimizer, updates=FAR)
        if how == "inside an update":
            write([sevens(network)])
        elif how != "not":
            scaled = Scale(network.blocks[0], torch.tensor(0.25).double())
            plan = sevens(network) if how == "assign" else scaled
            apply(network, [plan], method="toy", optimizer="keep")
        before = weights(module)
        drive(module, optimizer, updates=20, seed=2)
        found[how] = weights(module) - before
    assert found["not"].abs().min() > 1e-2
    for how, moved in found.items():
        torch.testing.assert_close(found["not"], moved, rtol=1e-9, atol=0, msg=how)


def test_options_and_learning_rate_are_the_bases():
    module = nn.Linear(2, 1)
    config = OptimizerConfig("trac", momentum=0.5, eps=1e-5, params={"base": "sgd"})
    updater = Updater(config, module)
    (optimizer,) = updater.optimizers
    assert isinstance(optimizer, Trac) and type(optimizer.base) is SGD
    updater.set_lr(0, 1)
    (group,) = optimizer.base.param_groups
    assert (group["lr"], group["momentum"]) == (1e-3, 0.5)  # and no ε, which a DQN always gives
    with pytest.raises(ConfigError, match="momentum"):
        Updater(OptimizerConfig("trac", momentum=0.5), module)
    with pytest.raises(ConfigError, match=r"trac\.base"):
        OptimizerConfig("trac", params={"base": "muon"}).check()
