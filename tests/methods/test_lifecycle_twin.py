"""Lifecycle networks against Algorithm 1 written line by line in NumPy, over whole trainings."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.marks import slow
from tests.naive.lifecycle import (
    NaiveAdam,
    NaiveLifecycleLinear,
    NaiveLinear,
    NaiveNet,
    NaiveSGD,
    duration,
    fresh_row,
)

INPUTS = 4
DURATIONS: dict[str, Any] = {"life": [40, 90], "recovery": [20, 60]}

OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd_momentum": (
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
        lambda: NaiveSGD(0.02, 0.9),
    ),
    "adam": (lambda p: torch.optim.Adam(p, lr=1e-3, fused=True), lambda: NaiveAdam(1e-3)),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, fused=True),
        lambda: NaiveAdam(1e-3, 0.1),
    ),
}


def numpy_of(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def network(**params: Any) -> nn.Sequential:
    torch.random.default_generator.manual_seed(0)
    layers = [nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    net = nn.Sequential(*layers).double()
    rlplast.replace_layers(net, **(DURATIONS | params))
    return net


def twin_of(net: nn.Sequential, optimizer: Any, warmup: int, memory: str) -> NaiveNet:
    def hidden(layer: Any) -> NaiveLifecycleLinear:
        d_out, d_in = layer.weight.shape
        seed, fans = int(layer.seed), d_in if memory == "he" else d_in + d_out

        def fresh(unit: int, revivals: int) -> tuple[np.ndarray, float]:
            return fresh_row(seed, 0, revivals, unit, d_in, fans), 0.0

        return NaiveLifecycleLinear(
            numpy_of(layer.weight),
            numpy_of(layer.bias),
            numpy_of(layer.life_max),
            numpy_of(layer.recovery_max),
            warmup,
            None if memory == "restore" else fresh,
        )

    head: Any = net[4]
    last = NaiveLinear(numpy_of(head.weight), numpy_of(head.bias))
    return NaiveNet([hidden(net[0]), hidden(net[2])], last, optimizer)


def assert_agree(layer: Any, twin: NaiveLifecycleLinear) -> None:
    """Counters, masks and scales exactly; awake rows, and what sleeping ones wake up with."""
    for name in ("active", "scale", "life", "recovery", "revivals"):
        assert np.array_equal(getattr(layer, name).numpy(), getattr(twin, name)), name
    awake = twin.active == 1
    row = np.where(awake[:, None], twin.weight, twin.weight_memory)
    np.testing.assert_allclose(numpy_of(layer.weight), row, rtol=0, atol=1e-10)
    bias = np.where(awake, twin.bias, twin.bias_memory)
    np.testing.assert_allclose(numpy_of(layer.bias), bias, rtol=0, atol=1e-10)


def follow(optimizer: str, updates: int, warmup: int, memory: str, **params: Any) -> NaiveNet:
    """Train a network and its twin on the same batches; compare them all the way."""
    net = network(warmup=warmup, memory=memory, **params)
    make, make_twin = OPTIMIZERS[optimizer]
    trained_by = make(net.parameters())
    living = rlplast.Network("net", net, trained_by)
    twin = twin_of(net, make_twin(), warmup, memory)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, INPUTS))
    targets = np.stack([np.sin(inputs[:, 0] * inputs[:, 1]), np.cos(inputs[:, 2])], axis=1)
    for update in range(1, updates + 1):
        chosen = rng.integers(len(inputs), size=8)
        x, y = inputs[chosen], targets[chosen]
        twin.update(x, y)
        trained_by.zero_grad()
        nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        trained_by.step()
        rlplast.tick(living)
        if update < 100 or update % 20 == 0:
            for layer, slow in zip((net[0], net[2]), twin.hidden, strict=True):
                assert_agree(layer, slow)
    head: Any = net[4]
    np.testing.assert_allclose(numpy_of(head.weight), twin.head.weight, rtol=0, atol=1e-10)
    out = net(torch.from_numpy(inputs))
    np.testing.assert_allclose(numpy_of(out), twin.forward(inputs), rtol=0, atol=1e-9)
    return twin


LONG = [slow("adamw", 4_000), *(slow(o, 800) for o in OPTIMIZERS if o != "adamw")]


@pytest.mark.parametrize(("optimizer", "updates"), [("adamw", 800), *LONG])
def test_whole_trainings_agree_with_the_twin(optimizer: str, updates: int) -> None:
    twin = follow(optimizer, updates, warmup=20, memory="restore")
    assert min(int(layer.revivals.min()) for layer in twin.hidden) >= updates // 170
    # The twin's own rows do drift asleep; only revival brings them back.
    assert max(layer.largest_drift for layer in twin.hidden) > 0.05


ARMS = [("restore", 0), ("he", 20), slow("he", 0), slow("xavier", 20), ("xavier", 0)]


@pytest.mark.parametrize(("memory", "warmup"), ARMS)
def test_each_ablation_arm_agrees_with_the_twin(memory: str, warmup: int) -> None:
    twin = follow("adamw", 300, warmup, memory)
    assert min(int(layer.revivals.min()) for layer in twin.hidden) >= 1


def test_units_that_fall_asleep_before_they_are_warm_agree_with_the_twin() -> None:
    twin = follow("adam", 150, 12, "restore", life=[5, 20], recovery=[2, 9])
    assert any((layer.life_max < 12).any() for layer in twin.hidden)


@pytest.mark.parametrize("memory", ["he", "xavier"])
def test_reinitialised_rows_have_the_spread_of_their_law(memory: str) -> None:
    layer = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 2))
    rlplast.replace_layers(layer, life=[1, 1], recovery=[3, 3], memory=memory)
    unit: Any = layer[0]
    living = rlplast.Network("net", layer)
    draws = []
    for _ in range(2):
        before = unit.weight.detach().clone()
        for _ in range(3):
            rlplast.tick(living)
            assert torch.equal(unit.weight, before)  # an evaluation may read it
        rlplast.tick(living)
        draws.append(unit.weight.detach().clone())
    std = (2 / 300) ** 0.5 if memory == "he" else (2 / 500) ** 0.5
    assert float(draws[0].std()) == pytest.approx(std, rel=0.02)
    assert (unit.bias == 0).all()
    correlation = torch.corrcoef(torch.stack([d.flatten() for d in draws]))[0, 1]
    assert abs(float(correlation)) < 0.02  # the next life draws anew


def test_redraw_gives_each_life_its_own_durations() -> None:
    net = network(life=[5, 9], recovery=[2, 4], warmup=0, redraw=True)
    layer: Any = net[0]
    living = rlplast.Network("net", net)
    lives: list[list[int]] = [[] for _ in range(8)]
    sleeps: list[list[int]] = [[] for _ in range(8)]
    previous, since = layer.active.clone(), [0] * 8
    for step in range(1, 400):
        rlplast.tick(living)
        for unit in (layer.active != previous).nonzero().flatten().tolist():
            spans = lives if previous[unit] else sleeps
            spans[unit].append(step - since[unit])
            since[unit] = step
        previous = layer.active.clone()
    seed = int(layer.seed)
    for unit in range(8):
        for spans, what, low, high in ((lives[unit], 0, 5, 9), (sleeps[unit], 1, 2, 4)):
            drawn = [duration(seed, low, high, what, n, unit) for n in range(len(spans))]
            assert spans == drawn and set(spans) == set(range(low, high + 1))
    # without it every life of a unit is as long as its first
    fixed = network(life=[5, 9], recovery=[2, 4], warmup=0)
    living = rlplast.Network("net", fixed)
    start = fixed[0].life_max.clone()  # type: ignore[union-attr, operator]
    for _ in range(50):
        rlplast.tick(living)
    assert torch.equal(fixed[0].life_max, start)  # type: ignore[arg-type]
