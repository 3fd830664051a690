import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order, heads, last_layers, matrices
from tests.models import Residual, build


def order_of(module: nn.Module, order: list[str] | None = None) -> list[str]:
    return forward_order(Network("q", module, order=order))


class Backwards(nn.Module):
    """Registers its layers in another order than it uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.norm = nn.LayerNorm(4, elementwise_affine=False)
        self.first = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(x.view(x.size(0), -1))


def test_orders_are_read_off_sequentials_and_traced_in_code() -> None:
    assert order_of(build("conv_batchnorm")) == ["0", "1", "3", "4", "7"]
    nested = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    assert order_of(nested) == ["0.0", "1"]
    assert order_of(Backwards()) == ["first", "norm", "last"]
    assert order_of(build("stacked")) == ["fc1", "fc2", "head"]  # its layers' own code is no code


def test_declared_order_wins_and_is_checked() -> None:
    declared = ["inp", "norm", "fc", "head"]
    assert order_of(Residual(), declared) == declared
    with pytest.raises(ConfigError, match="'fcc'"):
        order_of(Residual(), ["inp", "fcc"])

    class Declares(Residual):
        def forward_order(self) -> list[str]:
            return declared

    assert order_of(Declares()) == declared


def test_hidden_activations_among_the_outputs_are_no_branch() -> None:
    class Taps(Backwards):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            hidden = torch.relu(self.first(x))
            return self.last(hidden), hidden

    assert order_of(Taps()) == ["first", "last"]


def test_what_is_no_chain_is_refused_naming_where_it_branches() -> None:
    class Coded(nn.Module):
        def __init__(self, code: Callable[[Any, Tensor], Any]) -> None:
            super().__init__()
            self.body, self.mean, self.std = (nn.Linear(3, 3) for _ in range(3))
            self.code = code

        def forward(self, x: Tensor) -> Any:
            return self.code(self, torch.relu(self.body(x)))

    layer = nn.Linear(3, 3)
    cases: list[tuple[nn.Module, str]] = [
        (Residual(), "add joins inp, relu"),
        (Coded(lambda m, x: (m.mean(x), m.std(x))), "relu feeds mean, std"),
        (Coded(lambda m, x: m.body(x)), "body twice"),
        (nn.Sequential(layer, nn.ReLU(), layer), "0 twice"),
        (Coded(lambda m, x: m.mean(x if x.sum() > 0 else -x)), "q could not be traced"),
    ]
    for module, message in cases:
        with pytest.raises(ConfigError, match=message):
            order_of(module)


def test_heads_side_by_side_end_a_declared_order() -> None:
    declared: list[Any] = ["inp", "norm", ("fc", "head")]
    network = Network("q", Residual(), order=declared)
    assert forward_order(network) == ["inp", "norm", "fc", "head"]
    assert heads(network) == ("fc", "head")
    assert heads(Network("q", Residual(), order=["inp", "head"])) == ()
    assert heads(Network("q", Residual())) == ()
    with pytest.raises(ConfigError, match="'norm', 'fc'"):
        order_of(Residual(), ["inp", ("norm", "fc"), "head"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="'hed'"):
        order_of(Residual(), ["inp", ("fc", "hed")])  # type: ignore[list-item]


def test_a_flag_says_which_layers_give_the_outputs_whatever_else_is_known() -> None:
    module = Residual()
    assert last_layers(Network("q", module)) == {"head"}
    module.fc.is_head = True
    network = Network("q", module, followers={"target": copy.deepcopy(module)})
    assert last_layers(network) == last_layers(network.followers["target"]) == {"fc"}
    assert last_layers(Network("q", module, order=["inp", "norm", "head"])) == {"fc"}
    kept = {b.name for b in matrices(network, network.blocks, heads=False)}
    assert kept == {"inp.weight", "head.weight"}
