"""AdamO beside AdamW and autograd's gradient of the penalty."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.network.stacked import StackedLinear
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.optimizers.adam_o import AdamO, isometry_gradient
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from tests.methods.nets import normal

LR, S = 0.01, 0.3


def penalty(weight: Tensor) -> Tensor:
    """‖WᵀW − I‖² or ‖WWᵀ − I‖², the smaller Gram matrix, one matrix after the other."""
    if weight.ndim == 3:
        return torch.stack([penalty(member) for member in weight]).sum()
    matrix = weight.reshape(len(weight), -1)
    high, across = matrix.shape
    gram = matrix.T @ matrix if high >= across else matrix @ matrix.T
    return (gram - torch.eye(min(high, across), dtype=gram.dtype)).square().sum()


def test_the_pull_is_the_gradient_of_the_penalty() -> None:
    for shape in ((4, 4), (6, 3), (3, 6), (1, 5), (2, 4, 3), (3, 2, 2, 2)):
        weight = normal(*shape).requires_grad_()
        (expected,) = torch.autograd.grad(penalty(weight), weight)
        torch.testing.assert_close(isometry_gradient(weight.detach()), expected)


@pytest.mark.parametrize(("decay", "strength"), [(0.0, S), (0.2, S), (0.2, 0.0)])
def test_an_update_is_adamws_and_the_pull_at_the_weights_before_it(
    decay: float, strength: float
) -> None:
    params = [nn.Parameter(normal(*s, seed=i)) for i, s in enumerate([(4, 3), (3,), (2, 3, 4)])]
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    ours = AdamO(params, LR, weight_decay=decay, isometry=strength)
    theirs = AdamW(twins, LR, weight_decay=decay)
    for number in range(5):
        pulls = [torch.autograd.grad(penalty(p), p)[0] if p.ndim > 1 else 0 * p for p in twins]
        for place, (p, twin) in enumerate(zip(params, twins, strict=True)):
            p.grad = twin.grad = normal(*p.shape, seed=100 * number + place)
        ours.step()
        theirs.step()
        with torch.no_grad():
            for twin, pull in zip(twins, pulls, strict=True):
                twin.sub_(pull, alpha=LR * strength)
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin)
            for name in ("exp_avg", "exp_avg_sq"):  # the moments see the loss alone
                torch.testing.assert_close(ours.state[p][name], theirs.state[twin][name])


def pulled(module: nn.Module, **options: Any) -> set[str]:
    (optimizer,) = Updater(OptimizerConfig("adam_o", **options), module).optimizers
    own = [p for g in optimizer.param_groups if g["isometry"] > 0 for p in g["params"]]
    names = {p: name for name, p in module.named_parameters()}
    held = [p for g in optimizer.param_groups for p in g["params"]]
    assert len(held) == len(set(held)) == len(names)
    return {names[p] for p in own}


def test_weights_of_linear_and_conv_layers_are_pulled_and_nothing_else() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(8, 3)).append(StackedLinear(2, 3, 1))
    for options in ({}, {"weight_decay": 0.1, "decay": "matrices"}):
        assert pulled(net, **options) == {"0.weight", "4.weight", "5.weight"}
    critic = Critic(5, 2, TrunkSpec("simba", 4, 1))
    layers = ("input", "blocks.0.fc1", "blocks.0.fc2", "head")
    assert pulled(critic) == {f"{layer}.weight" for layer in layers}
    gpt = GPT(GPTModelConfig(layers=1, width=8, heads=2, vocab_size=9, context=4))
    inner = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert pulled(gpt) == {f"h.0.{layer}.weight" for layer in inner}
