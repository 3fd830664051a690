"""LayerNorm as a layer: what is installed, and what it computes, against the plain network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from tests.methods.nets import snapshot
from tests.methods.test_normalize_project import NORMED
from tests.methods.unit_nets import NETS, Trained
from tests.naive.normalize_project import layer_norm

every_net = pytest.mark.parametrize("net", NETS)


def install(module: nn.Module, **params: Any) -> list[str]:
    return rlplast.replace_layers(module, "layer_norm", **params)


@pytest.mark.parametrize("affine", [True, False])
@every_net
def test_outputs_are_normalised_before_nonlinearities(net: str, affine: bool) -> None:
    trained = Trained(net, install=lambda m: install(m, affine=affine, eps=1e-3)).train(3)
    twin, (x, _) = NETS[net].module(), trained.batch()
    state = trained.state()
    norms = {n: t for n, t in state.items() if any(f"{p}.norm." in n for p in NORMED[net])}
    assert len(norms) == 2 * len(NORMED[net]) * affine
    twin.load_state_dict({n: t for n, t in state.items() if n not in norms})

    def hook(path: str) -> Any:
        pair = [norms.get(f"{path}.norm.{n}") for n in ("weight", "bias")]

        def normed(layer: nn.Module, args: Any, out: Tensor) -> Tensor:
            if net == "stacked":
                members = [[None if t is None else t[member] for t in pair] for member in range(2)]
                return torch.stack(
                    [layer_norm(z, *own, eps=1e-3) for z, own in zip(out, members, strict=True)]
                )
            return layer_norm(out, *pair, eps=1e-3)

        return normed

    for path in NORMED[net]:
        twin.get_submodule(path).register_forward_hook(hook(path))
    torch.testing.assert_close(trained.module.eval()(x), twin.eval()(x), rtol=1e-4, atol=1e-5)


@every_net
def test_weights_and_biases_stay_and_nothing_happens_after_updates(net: str) -> None:
    plain = NETS[net].module()
    before = snapshot(plain)
    assert sorted(install(plain)) == sorted(NORMED[net])
    after = snapshot(plain)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    trained = Trained(net, install=install)
    hooks = rlplast.Hooks([], trained.network, "10 updates")
    assert hooks.hooks == []


def test_what_cannot_be_normalised_is_named() -> None:
    with pytest.raises(NothingToEdit, match="layer_norm finds no layer with hidden units"):
        install(nn.Sequential(nn.Linear(3, 2)))
    normed = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(NothingToEdit, match="layer_norm: a norm follows each layer with hidden"):
        install(normed)
    for first in ("layer_norm", "normalize_project"):
        module = NETS["mlp"].module()
        rlplast.replace_layers(module, first)
        with pytest.raises(ConfigError, match="layer_norm: 0 is normalised already"):
            install(module)
    with pytest.raises(ConfigError, match="layer_norm: 0 is a Conv1d: allowed are Linear, Conv2d"):
        install(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Conv1d(2, 1, 3)))
