"""Networks of `unit_nets` of which some units are silent, and what a twin makes of them."""

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.network.network import Network
from tests.methods.unit_nets import NETS, Trained, chains, normal
from tests.naive import redo as naive
from tests.naive.units import Layer


def probe(net: str, seed: int = 99, size: int = 16) -> Tensor:
    x = normal(size, *NETS[net].sample, seed=seed)
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def silent(units: int) -> int:
    """How many units of a group `spoil` silences."""
    return 1 if units < 5 else 2


@torch.no_grad()
def spoil(module: nn.Module, net: str) -> None:
    """Silence the first units of each group, make the third whisper and the others speak up."""
    for chain in chains(module, net):
        for layer in chain.values():
            shift, scale = (layer.b, layer.w) if layer.beta is None else (layer.beta, layer.gamma)
            assert shift is not None
            assert scale is not None
            shift += 3
            scale *= 0.1
            shift[: silent(len(shift))] = -50
            scale[2] *= 1e-3
            shift[2] = 0.02


def prepared(net: str, optimizer: str = "adam") -> Trained:
    made = Trained(net, optimizer).train(3)
    spoil(made.module, net)
    return made


def tables(module: nn.Module, net: str) -> dict[str, Tensor]:
    """A whole draw of each incoming weight, by group."""
    return {
        name: normal(*layer.w.shape, seed=1 + i)
        for chain in chains(module, net)
        for i, (name, layer) in enumerate(chain.items())
    }


def give(network: Network, monkeypatch: pytest.MonkeyPatch, fresh: Mapping[str, Tensor]) -> None:
    by_block = {g.weight.block.name: fresh[g.name] for g in network.units().groups}
    monkeypatch.setattr(network, "drawn", lambda block, generator: by_block[block.name])


def recycled(
    made: Trained, net: str, masks: dict[str, list[bool]], fresh: dict[str, Tensor], overlap: str
) -> nn.Module:
    """What the twin makes of a copy of the network."""
    module = copy.deepcopy(made.module)
    for chain in chains(module, net):
        layers: list[Layer] = list(chain.values())
        own = [masks[name] for name in chain]
        naive.recycle(layers, own, [fresh[name] for name in chain], overlap)
    return module
