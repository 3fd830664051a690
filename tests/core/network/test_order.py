import copy
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


def test_sequentials_are_read_off_with_norms_and_without_activations() -> None:
    assert order_of(build("conv_batchnorm")) == ["0", "1", "3", "4", "7"]
    nested = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    assert order_of(nested) == ["0.0", "1"]


def test_forward_code_is_traced_whatever_the_registration_order() -> None:
    assert order_of(Backwards()) == ["first", "norm", "last"]


def test_layers_with_their_own_blocks_are_traced_as_one() -> None:
    assert order_of(build("stacked")) == ["fc1", "fc2", "head"]


def test_declared_order_wins_and_is_checked() -> None:
    declared = ["inp", "norm", "fc", "head"]
    assert order_of(Residual(), declared) == declared
    with pytest.raises(ConfigError, match="declared order names no module 'fcc'"):
        order_of(Residual(), ["inp", "fcc"])

    class Declares(Residual):
        def forward_order(self) -> list[str]:
            return declared

    assert order_of(Declares()) == declared


def test_residual_branch_is_refused_naming_where_it_joins() -> None:
    with pytest.raises(ConfigError, match=r"q branches: add joins inp, relu; declare"):
        order_of(Residual())


def test_two_heads_are_refused_naming_where_they_part() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 4)
            self.mean = nn.Linear(4, 2)
            self.log_std = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.relu(self.body(x))
            return self.mean(x), self.log_std(x)

    with pytest.raises(ConfigError, match=r"q branches: relu feeds mean, log_std; declare"):
        order_of(TwoHeads())


def test_hidden_activations_among_the_outputs_are_no_branch() -> None:
    class Taps(Backwards):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            hidden = torch.relu(self.first(x))
            return self.last(hidden), hidden

    assert order_of(Taps()) == ["first", "last"]


def test_reused_layer_is_refused_in_code_and_in_sequentials() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.fc(x)))

    with pytest.raises(ConfigError, match="q uses fc twice"):
        order_of(Twice())
    layer = nn.Linear(3, 3)
    with pytest.raises(ConfigError, match="q uses 0 twice"):
        order_of(nn.Sequential(layer, nn.ReLU(), layer))


def test_code_that_cannot_be_traced_asks_for_a_declaration() -> None:
    class DependsOnData(Backwards):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ConfigError, match=r"q could not be traced .*: declare .*order=\[\.\.\.\]"):
        order_of(DependsOnData())


def test_heads_side_by_side_end_a_declared_order() -> None:
    declared: list[Any] = ["inp", "norm", ("fc", "head")]
    network = Network("q", Residual(), order=declared)
    assert forward_order(network) == ["inp", "norm", "fc", "head"]
    assert heads(network) == ("fc", "head")
    assert heads(Network("q", Residual(), order=["inp", "head"])) == ()
    assert heads(Network("q", Residual())) == ()
    with pytest.raises(ConfigError, match=r"\('norm', 'fc'\) side by side before its end"):
        order_of(Residual(), ["inp", ("norm", "fc"), "head"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="declared order names no module 'hed'"):
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
