"""DropConnect against a slow twin and the plain network."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import rlplast
from rlplast.core.rng import derive_seed
from tests.methods.test_dropout import READERS
from tests.methods.unit_nets import NETS, Trained
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
