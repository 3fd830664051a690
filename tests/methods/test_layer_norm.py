"""LayerNorm as a layer: what is installed, and what it computes, against the plain network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.methods.nets import snapshot
from tests.methods.test_normalize_project import NORMED
from tests.methods.unit_nets import NETS, Trained
from tests.naive.normalize_project import layer_norm


def install(module: nn.Module, **params: Any) -> list[str]:
    return rlplast.replace_layers(module, "layer_norm", **params)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("net", NETS)
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
    plain, normed = NETS[net].module(), NETS[net].module()
    assert sorted(install(normed)) == sorted(NORMED[net])
    after = snapshot(normed)
    assert all(torch.equal(after[name], tensor) for name, tensor in snapshot(plain).items())
    assert rlplast.Hooks([], trained.network, "10 updates").hooks == []
