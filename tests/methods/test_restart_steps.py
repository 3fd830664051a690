"""restart_steps beside Adam-Rel in plain numbers, and in runs where the target changes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import rlplast
from tests.models import assert_same, subject
from tests.naive.optimizers import NaiveAdamRel

LR = 0.01


def driven(make: Any, restarts: list[str], gradients: Tensor) -> list[list[float]]:
    layer = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    network = rlplast.Network("net", nn.Sequential(layer), make(layer.parameters()))
    rows = [{"method": "restart_steps", "at": restarts}] if restarts else []
    hooks = rlplast.Hooks(rows, network, "10k updates")
    found = []
    for update, gradient in enumerate(gradients, 1):
        layer.weight.grad = gradient.view(1, 2).clone()
        network.optimizers[0].step()
        found.append(layer.weight.flatten().tolist())
        hooks.step(updates=update)
    return found


@pytest.mark.parametrize(("kind", "decay", "fused"), [(Adam, 0.0, False), (AdamW, 0.1, True)])
def test_adam_becomes_adam_rel(kind: Any, decay: float, fused: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    gradients[5:] *= 30  # the target has changed

    def make(params: Any) -> torch.optim.Optimizer:
        return kind(params, lr=LR, weight_decay=decay, fused=fused)

    found = driven(make, ["5 updates", "9 updates"], gradients)
    twins, weights = [NaiveAdamRel(LR, decay) for _ in range(2)], [1.0, -2.0]
    for number, (gradient, now) in enumerate(zip(gradients, found, strict=True)):
        if number in (5, 9):
            for twin in twins:
                twin.restart()
        weights = [
            twin.step(w, float(g)) for twin, w, g in zip(twins, weights, gradient, strict=True)
        ]
        assert now == pytest.approx(weights, rel=1e-5)


def test_nothing_but_the_count_changes() -> None:
    made = subject("conv_batchnorm")
    before = made.snapshot()
    receipt = rlplast.apply("restart_steps", made.network)
    assert (receipt.optimizer_policy, receipt.followers) == ("keep", {"target": "leave"})
    assert (receipt.entries_touched, receipt.sfe) == (0, 0)
    steps = {name: t for name, t in before.items() if name.endswith(":step")}
    assert steps and all(t > 0 for t in steps.values())
    wanted = before | {name: torch.zeros_like(t) for name, t in steps.items()}
    assert_same(wanted, made.snapshot())


def test_an_optimizer_without_a_count_trains_as_without_it() -> None:
    gradients = torch.randn(9, 2, dtype=torch.float64)
    plain, restarted = (
        driven(lambda p: SGD(p, lr=LR, momentum=0.9), at, gradients) for at in ([], ["4 updates"])
    )
    assert plain == restarted


def test_members_of_an_ensemble_are_restarted_together() -> None:
    made, row = subject("stacked"), {"method": "restart_steps", "at": "2 updates"}
    with pytest.raises(rlplast.ConfigError, match=r"net\[0\]\.fc1\.weight .*net\[1\]"):
        rlplast.Hooks([row | {"layers": ["[0].fc1"]}], made.network, "9 updates")
    rlplast.Hooks([row | {"layers": ["fc1"]}], made.network, "9 updates")
