"""AID against a slow twin, its mean, and the networks that it becomes at the ends of p."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rlplast
from rlplast.core.rng import derive_seed
from tests.methods.test_activation import REPLACED
from tests.methods.unit_nets import NETS, Trained
from tests.models import observed
from tests.naive import dropping as naive

P = 0.8


def install(module: nn.Module) -> list[str]:
    return rlplast.replace_layers(module, "aid", p=P)


def twin(z: Tensor, path: str, updates: int) -> Tensor:
    """Each entry cut from below or, where the naive mask drops, from above."""
    seed = derive_seed(derive_seed(0, "layers", "aid", "model"), path)
    kept = naive.mask(z.shape, 1 - P, updates, seed) > 0
    return torch.where(kept, z.clamp(min=0), z.clamp(max=0))


@pytest.mark.parametrize("net", REPLACED)
def test_in_training_entries_are_cut_as_the_twin_cuts_them_and_elsewhere_it_is_the_mean(
    net: str,
) -> None:
    trained = Trained(net, install=install)
    hooks = trained.ticking()
    for updates in range(3):
        plain = NETS[net].module()
        plain.load_state_dict(trained.state())
        x, _ = trained.batch()
        h, layer = x, ""
        for name, module in plain.named_children():
            if isinstance(module, nn.ReLU):
                h = twin(h.detach(), layer, updates)
            else:
                h = module(h)
            layer = name if isinstance(module, nn.Linear | nn.Conv2d) else layer
        for _ in range(2):  # alike within an update
            torch.testing.assert_close(trained.module(x), h, rtol=1e-4, atol=1e-5)
        trained.update()
        hooks.step(updates=updates + 1)
    for module in plain.children():
        if isinstance(module, nn.ReLU):
            module.forward = lambda z: P * F.relu(z) - (1 - P) * F.relu(-z)
    state, (x, _) = trained.state(), trained.batch()
    for training in (False, True):
        for module in (plain, trained.module):
            module.load_state_dict(state)  # what BatchNorm has followed
            module.train(training)
        with torch.no_grad():
            torch.testing.assert_close(trained.module(x), plain(x))
    assert list(observed(trained.network, x)) == REPLACED[net]
