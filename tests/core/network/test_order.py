"""In which order layers come; units where training and evaluation mode compute different things."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order, heads, last_layers, matrices
from rlplast.core.network.segments import segments
from tests.methods.nets import Untraceable
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


def test_declared_order_wins_and_is_checked_and_heads_side_by_side_end_it() -> None:
    declared = ["inp", "norm", "fc", "head"]
    assert order_of(Residual(), declared) == declared

    class Declares(Residual):
        def forward_order(self) -> list[str]:
            return declared

    assert order_of(Declares()) == declared
    side: list[Any] = ["inp", "norm", ("fc", "head")]
    network = Network("q", Residual(), order=side)
    assert forward_order(network) == declared
    assert heads(network) == ("fc", "head")
    assert heads(Network("q", Residual(), order=["inp", "head"])) == ()
    assert heads(Network("q", Residual())) == ()
    wrong: list[tuple[list[Any], str]] = [
        (["inp", "fcc"], "'fcc'"),
        (["inp", ("norm", "fc"), "head"], "'norm', 'fc'"),
        (["inp", ("fc", "hed")], "'hed'"),
    ]
    for order, message in wrong:
        with pytest.raises(ConfigError, match=message):
            order_of(Residual(), order)


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


def test_a_flag_says_which_layers_give_the_outputs_whatever_else_is_known() -> None:
    module = Residual()
    assert last_layers(Network("q", module)) == {"head"}
    module.fc.is_head = True
    network = Network("q", module, followers={"target": copy.deepcopy(module)})
    assert last_layers(network) == last_layers(network.followers["target"]) == {"fc"}
    assert last_layers(Network("q", module, order=["inp", "norm", "head"])) == {"fc"}
    kept = {b.name for b in matrices(network, network.blocks, heads=False)}
    assert kept == {"inp.weight", "head.weight"}


def test_a_head_that_nobody_knows_is_the_layer_registered_last_and_a_warning_says_so() -> None:
    network = Network("q", Untraceable())
    with pytest.warns(UserWarning, match="head of network 'q' is not known, and body is taken"):
        assert last_layers(network) == {"body"}
    left = {b.path for b in matrices(network, network.blocks, heads=False)}
    assert left == {"value", "advantage"}


# Networks that compute one thing in training mode and another in evaluation mode.


class Net(nn.Module):
    """Two hidden layers and a head; what else there is depends on the mode."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.second, self.main = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        if "aux" in what:
            self.aux = nn.Linear(4, 2)
        if what == "deep aux":
            self.deep = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.first(x).relu()
        if self.what == "dropout" and self.training:
            x = F.dropout(x, 0.5)
        if self.what == "stochastic activation":
            x = self.second(x).tanh() if self.training else self.second(x).relu()
        elif self.what == "depth" and not self.training:
            x = self.second(x).relu() + x
        else:
            x = self.second(x).relu()
        if self.what == "aux" and self.training:
            return self.main(x), self.aux(x)
        if self.what == "deep aux" and self.training:
            return self.main(x), self.aux(self.deep(x).relu())
        return self.main(x)


def readers(network: Network) -> dict[str, list[str]]:
    return {g.name: [part.block.path for part in g.outgoing] for g in network.units().groups}


both_modes = pytest.mark.parametrize("train", [True, False])


@both_modes
def test_orders_and_chains_of_scales_are_those_of_training_mode(train: bool) -> None:
    order = ["first", "second", "main"]
    assert forward_order(Network("net", Net("dropout").train(train))) == order
    assert segments(Net("plain").train(train), lambda path: True) == [(order, None)]
    assert segments(Net("aux").train(train), lambda path: True) == []
    with pytest.raises(ConfigError, match="main, aux"):
        forward_order(Network("net", Net("aux").train(train)))


@both_modes
def test_layers_that_read_in_one_mode_only_are_readers(train: bool) -> None:
    network = Network("net", Net("aux").train(train))
    assert readers(network) == {"first": ["second"], "second": ["main", "aux"]}
    assert last_layers(network) == {"main", "aux"}
    same = Network("net", Net("dropout").train(train))
    assert readers(same) == {"first": ["second"], "second": ["main"]}
    assert [g.point.between for g in same.units().groups if g.point] == [("dropout",), ()]


@both_modes
def test_units_that_are_others_in_the_other_mode_are_refused(train: bool) -> None:
    for what, left, refused in (
        ("stochastic activation", ["first"], ["second"]),
        ("depth", [], ["first", "second"]),
        ("deep aux", ["first", "second"], ["deep"]),  # whose activations cannot be read
    ):
        network = Network("net", Net(what).train(train))
        units = network.units()
        assert [group.name for group in units.groups] == left
        for layer in refused:
            assert "training mode" in units.refused[layer] or "joins" in units.refused[layer]
        if what == "depth":
            with pytest.raises(NothingToEdit, match="first: "):
                network.units_in(network.blocks)
