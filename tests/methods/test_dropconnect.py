"""DropConnect against a slow twin and the plain network."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import rlplast
from rlplast.core.rng import derive_seed
from tests.methods.test_dropout import READERS
from tests.methods.unit_nets import NETS, Trained, normal
from tests.naive import dropping as naive

P = 0.4


def install(module: nn.Module) -> list[str]:
    return rlplast.replace_layers(module, "dropconnect", p=P)


def made(net: str) -> Trained:
    return Trained(net, install=install)


class Masked(nn.Module):
    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.mask


@pytest.mark.parametrize("net", NETS)
def test_weights_that_read_hidden_units_drop_what_the_twin_drops(net: str) -> None:
    trained = made(net)
    hooks = rlplast.Hooks([], trained.network, "1000 updates")
    names = set(dict(trained.module.named_parameters()))
    assert names == set(dict(trained.net.module().named_parameters()))
    seed = derive_seed(0, "layers", "dropconnect", "model")
    for updates in range(3):
        twin = trained.net.module()
        twin.load_state_dict(trained.module.state_dict())
        for path, units in READERS[net].items():
            layer: Any = twin.get_submodule(path)
            mask = naive.mask(layer.weight.shape, P, updates, derive_seed(seed, units))
            parametrize.register_parametrization(layer, "weight", Masked(mask))
        x, _ = trained.batch()
        expected = twin(x)
        for _ in range(2):  # alike within an update
            torch.testing.assert_close(trained.module(x), expected, rtol=1e-5, atol=1e-6)
        trained.update()
        hooks.step(updates=updates + 1)
    twin, (x, _) = trained.net.module(), trained.batch()
    twin.load_state_dict(trained.module.state_dict())
    with torch.no_grad():
        assert torch.equal(trained.module(x), twin(x))
    assert torch.equal(trained.module.eval()(x), twin.eval()(x))


def test_a_layer_that_is_named_drops_and_no_other_does() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert rlplast.replace_layers(net, "dropconnect", p=P, layers=["0"]) == ["0"]
    seed = derive_seed(derive_seed(0, "layers", "dropconnect", "model"), "0")
    x, first, last = normal(6, 4), net.get_submodule("0"), net.get_submodule("2")
    mask = naive.mask((8, 4), P, 0, seed)
    hidden = torch.relu(x @ (first.weight * mask).T + first.bias)
    torch.testing.assert_close(net(x), hidden @ last.weight.T + last.bias)


def test_it_stands_beside_dropout() -> None:
    module = NETS["mlp"].module()
    rlplast.replace_layers(module, "dropout", p=0.5)
    assert install(module) == ["2", "4"]
    hooks, x, outputs = (
        rlplast.Hooks([], rlplast.Network("net", module), "9 updates"),
        normal(8, 5),
        [],
    )
    for update in range(1, 3):
        outputs.append(module(x))
        hooks.step(updates=update)
    assert not torch.equal(*outputs)
    assert [int(t) for h in hooks.hooks for t in h.states["net"].values()] == [2, 2, 2, 2]
