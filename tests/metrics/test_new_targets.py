"""Loss of trainability beside a loop of deep copies, and where it must and must not be found."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.metrics import output_probe
from rlplast.metrics.new_targets import Trainability, trainability
from rlplast.metrics.probe import measure_run
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from tests.core.toy import Toy
from tests.marks import optimizers


def mlp(seed: int, width: int = 32) -> nn.Sequential:
    torch.default_generator.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def made(seed: int = 0, optimizer: Any = torch.optim.Adam, **options: Any) -> Any:
    module = mlp(seed)
    trained_by = optimizer(module.parameters(), **({"lr": 1e-2} | options))
    return Network("net", module, trained_by), torch.randn(64, 8)


def memorise(network: Network, x: Tensor, labellings: int, updates: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(labellings):
        y = torch.randint(4, (len(x),), generator=generator)
        for _ in range(updates):
            network.optimizers[0].zero_grad()
            F.cross_entropy(network.module(x), y).backward()
            network.optimizers[0].step()


def measured(network: Network, x: Tensor, **options: Any) -> Trainability:
    return trainability(
        network, lambda module: module(x), **({"targets": 3, "steps": 60} | options)
    )


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {"betas": (0.8, 0.99)}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    ],
)
def test_it_is_what_a_loop_of_copies_finds(optimizer: Any, options: dict[str, Any]) -> None:
    network, x = made(0, optimizer, **options)
    start = copy.deepcopy(network.module)
    memorise(network, x, 2, 20, 0)
    found = measured(network, x, seed=5, steps=20)
    errors: dict[str, list[float]] = {"now": [], "start": []}
    for number in range(3):
        drawn = copy.deepcopy(network.module)
        Network("drawn", drawn).initialise(torch_stream(5, "trainability", number))
        wave = torch.sin(100000.0 * drawn(x).detach().double())
        for name, origin in (("now", network.module), ("start", start)):
            fitted = copy.deepcopy(origin)
            target = (fitted(x).detach().mean(0).double() + wave).float()
            own = optimizer(fitted.parameters(), **({"lr": 1e-2} | options))
            for _ in range(20):
                own.zero_grad()
                (fitted(x) - target).square().mean().backward()
                own.step()
            errors[name].append(float((fitted(x) - target).square().mean().detach()))
    assert list(found.errors) == pytest.approx(errors["now"], rel=1e-3)
    assert list(found.initial) == pytest.approx(errors["start"], rel=1e-3)
    lost = torch.tensor(errors["now"]) - torch.tensor(errors["start"])
    assert found.lost == pytest.approx(float(lost.mean()), rel=1e-2)
    half = 4.302652729749464 * float(lost.std()) / 3**0.5  # Student's with 2 degrees of freedom
    assert found.high - found.lost == pytest.approx(half, rel=1e-2)
    assert found.lost - found.low == pytest.approx(half, rel=1e-2)


def test_memorising_random_labels_for_long_loses_it_and_nothing_is_lost_before() -> None:
    network, x = made()
    start = measured(network, x)
    assert start.low <= 0 <= start.high
    assert start.lost == pytest.approx(0, abs=1e-6)
    assert max(start.errors) < 0.4  # it does fit: the targets' variance is ½
    memorise(network, x, 8, 40, 0)
    found = measured(network, x)
    assert found.low > 0.1
    assert found.lost > 0.2
    network.optimizers[0].param_groups[0]["lr"] = 0.0  # as at the end of a schedule
    assert min(measured(network, x, targets=2).initial) > 0.4
    assert max(measured(network, x, targets=2, lr=1e-2).initial) < 0.4


@pytest.mark.parametrize("name", optimizers(["adam", "schedule_free", "upgd"]))
def test_every_optimizer_of_a_run_fits(name: str) -> None:
    module, x = mlp(0), torch.randn(32, 8)
    config = OptimizerConfig(name=name, lr=1e-2, decay="matrices")
    network = Network("net", module, Updater(config, module).optimizers)
    none, some = (measured(network, x, targets=2, steps=steps) for steps in (1, 20))
    for one, after in zip(none.errors, some.errors, strict=True):
        assert after < one
    assert some.lost == pytest.approx(0, abs=1e-6)


def test_a_network_without_optimizer_is_refused() -> None:
    module, x = mlp(0), torch.randn(4, 8)
    with pytest.raises(ConfigError, match="'net'"):
        measured(Network("net", module), x)


def test_a_run_that_has_not_begun_has_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_probe, "STEPS", 3)
    assert measure_run(Toy(), ["trainability"], 8, 1)["metric/trainability/net"] == 0
