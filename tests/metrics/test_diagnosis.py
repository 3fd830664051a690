"""A network's loss of plasticity in words, against networks whose answer is known."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.method.readings import OwnSource
from rlplast.core.rng import torch_stream
from rlplast.metrics import NetworkDiagnosis, diagnose_network, trainability
from rlplast.metrics.diagnosis import Fit, _judged

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
LR, UPDATES = 1e-2, 30


def network() -> rlplast.Network:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    return rlplast.Network("net", module, torch.optim.Adam(module.parameters(), LR))


def diagnosed(net: rlplast.Network, updates: int = UPDATES) -> NetworkDiagnosis:
    source = OwnSource({"net": net}, INPUTS)
    return diagnose_network(source, net, source.sample(0, 0), updates=updates)


def kill_units(net: rlplast.Network) -> None:
    with torch.no_grad():
        net.module[2].bias.fill_(-1e3)


def redraw(net: rlplast.Network) -> None:
    drawn = torch_stream(7, "other")
    with torch.no_grad():
        for block in net.blocks:
            block.view.copy_(net.fresh(block, drawn))


def test_network_whose_units_are_dead_has_lost_plasticity() -> None:
    net = network()
    kill_units(net)
    found = diagnosed(net)
    assert found.verdict == "lost"
    assert found.fit.now == pytest.approx(0, abs=0.05)
    assert found.fit.initial == pytest.approx(found.fit.fresh, abs=0.1)
    signs = {sign.name: sign for sign in found.signs}
    assert signs["dormant_ratio"].now >= 0.5 and signs["dormant_ratio"].alarming
    # Without known initial weights it is compared with fresh ones.
    found = rlplast.diagnose_module(net.module, INPUTS, net.optimizers[0], updates=UPDATES)
    assert found.verdict == "lost"
    assert found.fit is not None and found.fit.initial is None
    assert all(sign.initial is None and sign.fresh is not None for sign in found.signs)


def test_network_with_other_fresh_weights_has_kept_it_and_with_its_own_is_new() -> None:
    net = network()
    new = diagnosed(net, 2)
    assert new.verdict == "new" and new.fit is None
    redraw(net)
    found = diagnosed(net)
    assert found.verdict == "kept", found.reason
    twin = trainability(net, lambda module: module(INPUTS), targets=3, steps=UPDATES)
    assert found.fit.now == pytest.approx(1 - sum(min(e, 0.5) for e in twin.errors) / 3 / 0.5)
    assert found.fit.initial == pytest.approx(1 - sum(twin.initial) / 3 / 0.5)
    assert not any(sign.alarming for sign in found.signs)


def test_fits_that_diverge_have_fitted_nothing() -> None:
    net = network()
    redraw(net)
    net.optimizers = (torch.optim.SGD(net.module.parameters(), 1e9),)
    found = diagnosed(net, 20)
    assert found.verdict == "unclear"
    assert (found.fit.now, found.fit.fresh, found.fit.behind) == (0, 0, (0, 0, 0))


@pytest.mark.parametrize("wrong", [{"targets": 1}, {"updates": 0}], ids=str)
def test_what_no_interval_comes_of_is_refused(wrong: dict[str, int]) -> None:
    ((key, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"{key} = {value}"):
        rlplast.diagnose_module(network().module, INPUTS, **wrong)


FIT = Fit(2000, 1.0, 1.0, 1.0, (0.0, -0.01, 0.01))


def test_verdicts() -> None:
    for fit, verdict in (
        (FIT, "kept"),
        (replace(FIT, now=0.0, behind=(1.0, 0.96, 1.04)), "lost"),
        (replace(FIT, now=0.1, behind=(0.9, 0.7, 1.1)), "slower or lost"),
        (replace(FIT, now=0.5, behind=(0.5, 0.4, 0.6)), "slower"),
        (replace(FIT, now=0.9, behind=(0.1, 0.0, 0.2)), "unclear"),
        (replace(FIT, now=0.0, fresh=0.1, behind=(0.1, 0.1, 0.1)), "unclear"),
    ):
        assert _judged(fit)[0] == verdict
