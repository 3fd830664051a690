"""Kron beside the package's own class; its resets; its stream."""

import copy
import random
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.edits import Assign
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments, shared
from rlplast.core.rng import derive_seed
from rlplast.optimizers import kron as module_of_kron
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.kron import Kron
from rlplast.optimizers.updater import Updater
from tests.firing import apply
from tests.optimizers.drives import Mixed, drive, give_gradients, weights

needs_package = pytest.mark.skipif(find_spec("kron_torch") is None, reason="needs kron-torch")


@needs_package
def test_updates_are_those_of_the_package():
    module = Mixed()
    other = copy.deepcopy(module).to(memory_format=torch.contiguous_format)
    other.scalar = nn.Parameter(other.scalar.detach().view(1))  # the package knows no 0-d tensor
    ours = Kron(module.parameters(), lr=0.01, weight_decay=0.1, seed=3)
    theirs = module_of_kron._package().Kron(other.parameters(), lr=0.01, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for update in range(10):
        if update == 6:  # from here preconditioners learn less often, and rarely at the end
            for steps in (theirs._prob_step, shared(ours)["updates"]):
                steps.fill_(2000)
        give_gradients(module, generator, 0.0)
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            q.grad = p.grad.clone(memory_format=torch.contiguous_format).view(q.shape)
        ours.step()
        seed = derive_seed(3, "kron", update + 1)
        torch.manual_seed(seed)
        theirs.rng = random.Random(seed)
        with torch.compiler.set_stance("force_eager"):
            theirs.step()
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.reshape(q.shape), q)
    assert int(shared(ours)["updates"]) == 2004 and int(shared(ours)["unlearned"]) > 0


@needs_package
def test_draws_are_of_a_stream_of_the_runs_seed_and_nothing_is_printed(capsys):
    found = []
    for seed in (0, 1, 1):
        module = Mixed()
        updater = Updater(OptimizerConfig("kron", momentum=0.5), module, seed)
        before = torch.get_rng_state(), random.getstate()
        drive(module, *updater.optimizers, updates=2, mean=0.0)
        assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
        found.append(weights(module))
        assert updater.optimizers[0].param_groups[0]["b1"] == 0.5
    assert torch.equal(found[1], found[2]) and not torch.equal(found[0], found[1])
    assert capsys.readouterr().out == ""


@needs_package
def test_touched_entries_lose_their_momentum_and_preconditioners_stay():
    module = Mixed()
    optimizer = Kron(module.parameters(), lr=0.01)
    network = Network("net", module, optimizer)
    drive(module, optimizer, updates=5, mean=0.0)
    (block,) = network.select(lambda b: b.name == "conv.weight")
    before = {n: t.clone() for n, t in moments(network, block.param).items()}
    mask = torch.zeros_like(block.view, dtype=torch.bool)
    mask[1] = True
    plan = [Assign(block, torch.zeros_like(block.view), mask)]
    apply(network, plan, method="toy", optimizer="touched")
    after = moments(network, block.param)
    assert torch.equal(after["Q"], before["Q"]) and float(after["step"]) == 5
    assert torch.equal(after["momentum_buffer"], before["momentum_buffer"].masked_fill(mask, 0))
    assert before["momentum_buffer"][1].all()
    drive(module, optimizer, updates=1)  # what was zeroed is what the package reads
    apply(network, plan, method="toy", optimizer="parameter")
    assert float(after["step"]) == 0 and not after["momentum_buffer"].any()
    assert sorted(after["Q"].unique().tolist()) == [0, 1]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kron_torch", None)
    monkeypatch.delitem(sys.modules, "kron_torch.kron", raising=False)
    with pytest.raises(ConfigError, match=r"rlplast\[kron\]"):
        Updater(OptimizerConfig("kron"), nn.Linear(2, 1))
