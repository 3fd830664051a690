"""Networks that compute one thing in training mode and another in evaluation mode."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order, last_layers
from rlplast.core.network.segments import segments


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
def test_layers_that_read_in_one_mode_only_are_readers(train: bool) -> None:
    network = Network("net", Net("aux").train(train))
    assert readers(network) == {"first": ["second"], "second": ["main", "aux"]}
    assert last_layers(network) == {"main", "aux"}
    same = Network("net", Net("dropout").train(train))
    assert readers(same) == {"first": ["second"], "second": ["main"]}
    assert [g.point.between for g in same.units().groups if g.point] == [("dropout",), ()]


@both_modes
def test_a_reset_unit_is_silent_in_both_modes(train: bool) -> None:
    net = Net("aux").train(train)
    with torch.no_grad():
        net.second.weight[1], net.second.bias[1] = 0, -5  # it never fires
    x, network = torch.randn(64, 6), Network("net", net, torch.optim.Adam(net.parameters()))
    before = [output.clone() for output in net.train()(x)]
    receipt = rlplast.apply("redo", network, threshold=0.0, inputs=x)
    assert receipt.units is not None and receipt.units["second"] >= 1
    assert not net.main.weight[:, 1].any() and not net.aux.weight[:, 1].any()
    for one, other in zip(before, net(x), strict=True):
        torch.testing.assert_close(one, other)


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


@both_modes
def test_orders_of_both_modes_have_to_be_one(train: bool) -> None:
    order = ["first", "second", "main"]
    assert forward_order(Network("net", Net("dropout").train(train))) == order
    with pytest.raises(ConfigError, match="main, aux"):
        forward_order(Network("net", Net("aux").train(train)))

    class Longer(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()
            return self.main(x if self.training else self.second(x).relu())

    with pytest.raises(ConfigError, match=r"first, main .* first, second, main"):
        forward_order(Network("net", Longer("").train(train)))


@both_modes
def test_chains_of_scales_are_those_of_both_modes(train: bool) -> None:
    whole = [(["first", "second", "main"], None)]
    assert segments(Net("plain").train(train), lambda path: True) == whole
    assert segments(Net("aux").train(train), lambda path: True) == []
