"""Self-normalized resets against their slow twin: firing tables, and inside training."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.cases import about
from tests.marks import slow
from tests.methods.unit_nets import BATCH, Trained, chains, follow, table_row
from tests.naive.snr import Snr
from tests.naive.units import Layer

SHORT = {"percentile": 0.9, "tau_init": 40, "tau_max": 96, "refresh": 25, "expansion": 2}


class Twin(Snr):
    def __init__(self, layers: dict[str, Any], tags: dict[str, int], **options: Any) -> None:
        self.tags = [tags[name] for name in layers]
        options = {"tau_min": BATCH} | options
        super().__init__(list(layers.values()), draw=self.drawn, **options)

    def drawn(self, number: int, unit: int, count: int) -> Tensor:
        w = self.layers[number].w
        fan_in = math.prod(w.shape[1:])
        values = table_row(self.tags[number], unit, count, fan_in) / math.sqrt(fan_in)
        return values.to(w.dtype).view(w.shape[1:])


def hooks_on(module: nn.Module | rlplast.Network, **params: Any) -> rlplast.Hooks:
    if isinstance(module, nn.Module):
        module = rlplast.Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    config = {"method": "snr", "every": "1 updates", "params": params}
    return rlplast.Hooks([config], module, "100000 updates", seed=4)


def hooked(made: Trained, **params: Any) -> rlplast.Hooks:
    return hooks_on(made.network, **(SHORT | params))


def shy(net: str, optimizer: str = "adam") -> Trained:
    """A network whose units fire seldom, one of each group never."""
    made = Trained(net, optimizer)
    with torch.no_grad():
        for chain in chains(made.module, net):
            for layer in chain.values():
                shift = layer.b if layer.beta is None else layer.beta
                shift -= 1.5
                shift[1] = -50
    return made


def check_books(hooks: rlplast.Hooks, names: list[str], twin: Snr) -> None:
    state = hooks.hooks[0].states["net"]
    for i, name in enumerate(names):
        assert state[f"age/{name}"].tolist() == twin.age[i]
        assert state[f"tau/{name}"].tolist() == twin.tau[i]
        assert state[f"drawn/{name}"].tolist() == twin.resets[i]
        bins = state[f"gaps/{name}"].view(len(twin.age[i]), twin.tau_max + 2)
        for unit, counts in enumerate(twin.hist[i]):
            found = {a: n for a, n in enumerate(bins[unit, :-1].tolist()) if n}
            assert found == counts, (name, unit)


def compare(made: Trained, hooks: rlplast.Hooks, updates: int, **options: Any) -> dict[str, int]:
    def twin_of(chain: dict[str, Layer]) -> Twin:
        return Twin(chain, made.tags, **(SHORT | options))

    return follow(made, hooks, updates, twin_of, partial(check_books, hooks))


@pytest.mark.parametrize(
    ("net", "updates"),
    [("mlp", 50), ("conv_batchnorm", 40), slow("residual", 120), ("stacked", 45)],
)
def test_updates_of_training_reset_what_the_twin_resets(
    net: str, updates: int, tables: None
) -> None:
    made = shy(net)
    hooks = hooked(made)
    total = compare(made, hooks, updates)
    assert all(total.values()), total
    [receipt] = hooks.flush()
    assert receipt.units == total
    assert receipt.firings == updates


OPTIONS: list[dict[str, Any]] = [
    {"percentile": 0.5, "expansion": 1},
    {"percentile": 1.0, "expansion": 3, "refresh": 7},
    {"tau_init": 8, "tau_min": 1, "empty": "official", "refresh": 3},
    {"tau_min": 20, "tau_init": 10, "eps": 0.2},
]


def test_every_option_is_the_twins(tables: None) -> None:
    for options in OPTIONS:
        with about(options):
            made = shy("mlp")
            assert any(compare(made, hooked(made, **options), 32, **options).values())


def test_thresholds_begin_at_their_largest_and_fall_to_the_batch_size() -> None:
    made = Trained("mlp")
    hooks = hooked(made, tau_init=None, refresh=2)
    state = hooks.hooks[0].states["net"]
    h, found = torch.ones(BATCH, 6), []
    for update in range(1, 9):
        h[:, :2] = update % 2  # silent in every second update: gaps of one batch
        hooks.step(updates=update, activations={"0": h, "2": torch.ones(BATCH, 6)})
        found.append(state["tau/0"].tolist()[1:3])
    # No gap has ended at the first refreshment. At the third the gap, a reset, is no smaller than
    # the threshold, which doubles; after the reset there was none.
    assert found == [[96, 96]] * 3 + [[8, 96]] * 2 + [[16, 96]] * 3


def test_a_nonlinearity_that_is_never_silent_needs_eps() -> None:
    def net(nonlinearity: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nonlinearity, nn.Linear(4, 1))

    for rectifier in (nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.ReLU6(inplace=True)):
        hooks_on(net(rectifier))
    for nonlinearity in (nn.GELU(), nn.Tanh(), nn.SiLU(), nn.LeakyReLU()):
        with pytest.raises(rlplast.ConfigError, match=r"net\.0 .*eps"):
            hooks_on(net(nonlinearity))
    hooks = hooks_on(net(nn.Tanh()), eps=0.1, tau_init=8)
    h = torch.tensor([[0.2, -0.2, 0.05, -0.05]]).repeat(8, 1)
    hooks.step(updates=1, activations={"0": h})
    [receipt] = hooks.flush()
    assert receipt.units == {"0": 2}
