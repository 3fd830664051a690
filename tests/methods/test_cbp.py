"""Continual backprop against its slow twin, inside a few hundred updates of training."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
import rlplast.methods.cbp as cbp
from rlplast.methods.recycling import uniform_rows
from tests.marks import slow
from tests.methods.unit_nets import Layer, Trained, follow, table_row
from tests.naive.cbp import UTILITIES, Cbp, bound

CENTRED = ("zero_contribution", "adaptable_contribution", "feature_by_input")
FAST: dict[str, Any] = {"replacement_rate": 0.05, "maturity": 5, "decay": 0.9}


def table_uniform(seed: Tensor, what: int, tag: int, number: Tensor, units: Any = None) -> Tensor:
    key = 1_000_003 * (what + 1) + 1009 * tag + int(number)
    generator = torch.Generator().manual_seed(key)
    values = torch.rand(1 if units is None else len(units), generator=generator).double()
    return values[0] if units is None else values


@pytest.fixture
def all_tables(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbp, "uniform", table_uniform)


class Twin(Cbp):
    def __init__(self, layers: dict[str, Any], tags: dict[str, int], init: str, **options: Any):
        self.tags = [tags[name] for name in layers]
        self.init, self.now, self.updates = init, 0, 0
        super().__init__(list(layers.values()), draw=self.drawn, chance=self.chances, **options)

    def drawn(self, number: int, unit: int, count: int) -> Tensor:
        w = self.layers[number].w
        tag = self.tags[number] + cbp._ROW
        values = table_row(tag, unit, count, math.prod(w.shape[1:]))
        return (values * bound(w, self.init)).to(w.dtype).view(w.shape[1:])

    def chances(self) -> float:
        now, updates = self.tags[self.now], torch.tensor(self.updates)
        return float(table_uniform(torch.tensor(0), 0, now, updates))

    def count(self, number: int, eligible: int) -> int:
        self.now = number
        return super().count(number, eligible)

    def step(self, activations: list[Tensor]) -> list[list[int]]:
        chosen = super().step(activations)
        self.updates += 1
        return chosen


def hooks_on(network: rlplast.Network, **params: Any) -> rlplast.Hooks:
    config = {"method": "cbp", "every": "1 updates", "params": FAST | params}
    return rlplast.Hooks([config], network, "100000 updates", seed=4)


def compare(made: Trained, hooks: rlplast.Hooks, updates: int, **options: Any) -> dict[str, int]:
    init = options.pop("init", "kaiming")
    defaults = {"utility": "contribution", "accumulate": True, "bias_transfer": False}
    options = FAST | defaults | options
    state = hooks.hooks[0].states["net"]

    def twin_of(chain: dict[str, Layer]) -> Twin:
        return Twin(chain, made.tags, init, **options)

    def check_books(names: list[str], twin: Twin) -> None:
        for i, name in enumerate(names):
            assert state[f"age/{name}"].tolist() == twin.age[i], name
            assert state[f"drawn/{name}"].tolist() == twin.replaced[i]
            close(state[f"util/{name}"], twin.util[i])
            if options["bias_transfer"] or options["utility"] in CENTRED:  # else unused
                close(state[f"mean_act/{name}"], twin.mean_act[i])
            if options["accumulate"]:
                assert float(state[f"owed/{name}"]) == twin.acc[i]

    shifted = "bias" if options["bias_transfer"] else "nothing"
    return follow(made, hooks, updates, twin_of, check_books, shifted)


def close(ours: Tensor, theirs: list[float]) -> None:
    torch.testing.assert_close(ours.double(), torch.tensor(theirs).double(), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("net", "accumulate"),
    [("mlp", True), ("conv_batchnorm", True), slow("residual", False), ("stacked", False)],
)
def test_updates_of_training_replace_what_the_twin_replaces(
    net: str, accumulate: bool, all_tables: None
) -> None:
    made = Trained(net)
    hooks = hooks_on(made.network, accumulate=accumulate)
    total = compare(made, hooks, 25, accumulate=accumulate)
    assert all(total.values()), total
    [receipt] = hooks.flush()
    assert (receipt.units, receipt.firings) == (total, 25)


@pytest.mark.parametrize("net", ["mlp", slow("conv_batchnorm")])
def test_every_utility_law_transfer_and_optimizer_is_the_twins(net: str, all_tables: None) -> None:
    ends: list[dict[str, Any]] = [
        {"decay": 0.0},
        {"maturity": 0, "replacement_rate": 1.0},
        {"maturity": 3, "replacement_rate": 0.7, "accumulate": False},
        {"maturity": 0, "replacement_rate": 0.0},
    ]
    options = [{"utility": utility} for utility in UTILITIES] + [{"init": "default"}]
    for each in [*options, {"bias_transfer": True}, *(ends if net == "mlp" else [])]:
        made = Trained(net)
        total = compare(made, hooks_on(made.network, **each), 14, **each)
        assert all(total.values()) is (each.get("replacement_rate") != 0.0), each
    for optimizer in ("adamw_fused", "sgd_momentum"):
        made = Trained(net, optimizer)
        assert all(compare(made, hooks_on(made.network), 14).values()), optimizer


def test_rows_are_as_wide_as_the_activation_asks() -> None:
    # gnt.py: Kaiming's bound gain · √(3 / fan_in), with gain 1 for SELU
    gains = {nn.ReLU: 2**0.5, nn.Tanh: 5 / 3, nn.SELU: 1.0, nn.GELU: 2**0.5}
    for activation, gain in gains.items():
        torch.random.default_generator.manual_seed(0)
        module = nn.Sequential(nn.Linear(12, 200), activation(), nn.Linear(200, 2))
        network = rlplast.Network("net", module, torch.optim.SGD(module.parameters(), lr=0.0))
        hooks = hooks_on(network, replacement_rate=1.0, maturity=0)
        with rlplast.record(network) as activations:
            module(torch.randn(4, 12)).sum().backward()
        hooks.step(updates=1, activations=activations)
        limit = gain * (3 / 12) ** 0.5
        assert 0.98 * limit < float(module[0].weight.detach().abs().max()) <= limit, activation


def test_rows_are_drawn_within_the_bound_and_differ() -> None:
    group = Trained("stacked").network.units().groups[0]
    everyone, view = torch.ones(group.size, dtype=torch.bool), group.weight.block.view
    zero = torch.zeros(group.size, dtype=torch.int64)

    def draw(seed: int = 1, tag: int = 2, number: int = 0, mask: Tensor = everyone) -> Tensor:
        return uniform_rows(group.weight, mask, 0.3, seed, tag, zero + number)

    first = draw()
    assert first.shape == view.shape and first.unique().numel() == first.numel()
    assert 0.2 < first.abs().max() <= 0.3
    assert torch.equal(first, draw())
    for other in (draw(seed=2), draw(tag=3), draw(number=1)):
        assert not (other == first).any()
    one = torch.arange(group.size) == 1
    assert torch.equal(draw(mask=one), torch.where(one[:, None], first, view))
