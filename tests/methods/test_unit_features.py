"""Unit features against a slow twin, and beside other methods."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.methods.test_normalize_project import HEADS
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import recorded
from tests.naive import unit_features as naive

OPTIONS: dict[str, dict[str, Any]] = {"crelu": {"width": "double"}}


def install(module: nn.Module) -> list[str]:
    return rlplast.replace_layers(module, "unit_features")


def read_by(layer: nn.Module, module: nn.Module, *inputs: Tensor) -> Tensor:
    found: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    module.eval()(*inputs)
    handle.remove()
    return found[0].detach()


def expected(plain: nn.Module, head: str, *inputs: Tensor) -> Tensor:
    """The twin's outputs of a head of a plain network; of a stacked one of each member."""
    layer: Any = plain.get_submodule(head)
    x, weight, bias = read_by(layer, plain, *inputs), layer.weight.detach(), layer.bias.detach()
    if weight.ndim == 2:
        return naive.head(x, weight, bias)
    members = zip(x, weight, bias, strict=True)
    return torch.stack([naive.head(*member) for member in members])


@pytest.mark.parametrize("net", NETS)
def test_outputs_are_the_twins(net: str) -> None:
    trained = Trained(net, install=install).train(3)
    plain, (x, _) = NETS[net].module(), trained.batch()
    plain.load_state_dict(trained.state())
    assert install(NETS[net].module()) == [HEADS[net]]
    out = trained.module.eval()(x)
    torch.testing.assert_close(out, expected(plain, HEADS[net], x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trunk", ["mlp", "simba"])
def test_networks_of_sac_compute_it_for_each_member_and_head(trunk: str) -> None:
    actor, critic = Actor(5, 2, TrunkSpec(trunk, 4, 2)), Critic(5, 2, TrunkSpec(trunk, 4, 2))
    obs, action = normal(6, 5), normal(6, 2, seed=1)
    values = expected(critic, "head", obs, action).squeeze(-1)
    heads = [expected(actor, head, obs) for head in ("mean", "log_std")]
    taps = recorded(critic, obs, action)[1]
    assert install(actor) == ["mean", "log_std"]
    assert install(critic) == ["head"]
    torch.testing.assert_close(critic(obs, action), values)
    mean, log_std = actor(obs)
    torch.testing.assert_close(mean, heads[0])
    torch.testing.assert_close(log_std, -10 + 6 * (heads[1].tanh() + 1))
    for name, tap in recorded(critic, obs, action)[1].items():
        assert torch.equal(tap, taps[name]), name  # what metrics read is not scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_of_zeros_stay_zeros_with_finite_gradients_of_both_orders(
    dtype: torch.dtype,
) -> None:
    head = nn.Linear(6, 3).to(dtype)
    install(nn.Sequential(nn.Linear(4, 6), head))
    x = normal(4, 6).to(dtype)
    x[:2] = 0
    x.requires_grad_()
    out = head(x)
    assert torch.equal(out[:2], head.bias.expand(2, 3))
    (gradient,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
    torch.testing.assert_close(gradient[:2], (2 * head.bias @ head.weight).expand(2, 6))
    (second,) = torch.autograd.grad(gradient.float().square().sum(), x)
    assert second.isfinite().all()
    assert out.dtype == dtype


def test_other_methods_act_in_the_same_network() -> None:
    for before in ("dropout", "layer_norm", "crelu", "deep_fourier", "lifecycle"):
        module, params = NETS["mlp"].module(), OPTIONS.get(before, {})
        rlplast.replace_layers(module, before, **params)
        plain = copy.deepcopy(module)
        assert install(module) == ["4"], before
        x = normal(4, 5)
        torch.testing.assert_close(module.eval()(x), expected(plain, "4", x))
    trained = Trained("mlp", install=install)
    assert [g.name for g in trained.network.units().groups] == ["0", "2"]


def test_what_cannot_be_scaled_is_named() -> None:
    gpt = GPT(GPTModelConfig(layers=1, width=12, heads=2, vocab_size=16, context=8))
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))
    again = NETS["mlp"].module()
    install(again)
    for module, name in ((gpt, "tied to wte"), (conv, "2 is a Conv2d"), (again, "4 ")):
        with pytest.raises(rlplast.ConfigError, match=name):
            install(module)
