"""Deep Fourier features: what networks compute with them, and whose nonlinearity is replaced."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.networks import Architecture, QNetwork
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.supervised.vit import ViT
from tests.methods.unit_nets import Trained, normal
from tests.models import recorded
from tests.naive import joining as naive


def install(module: nn.Module) -> list[str]:
    return rlplast.replace_layers(module, "deep_fourier")


def test_outputs_are_the_twins_and_everything_trains() -> None:
    trained = Trained("mlp", install=install)
    start = trained.state()
    trained.train(3)
    w, (x, _) = trained.state(), trained.batch()
    torch.testing.assert_close(trained.module(x), naive.forward("mlp", w, x, naive.fourier))
    assert all((p != start[n]).any() for n, p in trained.module.named_parameters())


def q_network() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return QNetwork(Architecture(((4, 3, 1),), (6,)), (2, 6, 6), 3), (normal(5, 2, 6, 6),)


def gpt() -> tuple[nn.Module, tuple[Tensor, ...]]:
    config = GPTModelConfig(layers=2, heads=2, width=8, context=4, vocab_size=9)
    return GPT(config), (torch.arange(8).view(2, 4),)


Made = tuple[nn.Module, tuple[Tensor, ...]]
OWN: dict[str, Callable[[], Made]] = {
    "q": q_network,
    "actor": lambda: (Actor(5, 2, TrunkSpec("mlp", 6, 2)), (normal(4, 5),)),
    "critic": lambda: (Critic(5, 2, TrunkSpec("mlp", 6, 2)), (normal(4, 5), normal(4, 2))),
    "simba": lambda: (Critic(5, 2, TrunkSpec("simba", 4, 2)), (normal(4, 5), normal(4, 2))),
    "vit": lambda: (ViT((1, 8, 8), 3, width=6, depth=2), (normal(2, 1, 8, 8),)),
    "gpt": gpt,
}


@pytest.mark.parametrize("name", OWN)
def test_our_networks_give_sines_and_cosines_of_half_as_many_units(name: str) -> None:
    module, inputs = OWN[name]()
    plain: Any = copy.deepcopy(module)
    names, found = list(dict(module.named_parameters())), recorded(plain, *inputs)
    paths = install(module)
    assert list(dict(module.named_parameters())) == names
    seen: dict[str, Tensor] = {}

    def keep(layer: nn.Module, args: Any, out: Tensor) -> None:
        seen["z"] = out

    for path in paths:
        module.get_submodule(path).register_forward_hook(keep)
        taps = recorded(module, *inputs)[1]
        own = [tap for key, tap in taps.items() if key.partition("].")[2] == path or key == path]
        z, convs = seen["z"], seen["z"].ndim == 4
        for member, tap in enumerate(own):
            mine = z[member] if len(own) > 1 else z.flatten(0, -2) if name in ("gpt", "vit") else z
            torch.testing.assert_close(tap, naive.fourier(mine, 1 if convs else -1))
            one, two = tap.chunk(2, 1 if convs else -1)
            torch.testing.assert_close(one**2 + two**2, torch.ones_like(one))
        assert own
        assert [t.shape for t in found[1].values()] == [t.shape for t in taps.values()]
