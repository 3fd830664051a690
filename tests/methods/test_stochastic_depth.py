"""Stochastic depth: which blocks are left out, for which samples, and what is left."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.rng import derive_seed
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.supervised.resnet import ResNet18
from rlplast.supervised.vit import ViT
from tests.methods.unit_nets import normal
from tests.naive import dropping as naive

SEED = derive_seed(0, "layers", "stochastic_depth", "model")
BATCH = 6


class Stream(nn.Module):
    """A timm-like model: blocks with a drop_path on each of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self._block() for _ in range(3))

    def _block(self) -> nn.Module:
        block = nn.Module()
        block.one, block.two = nn.Linear(4, 4), nn.Linear(4, 4)
        block.drop_path1, block.drop_path2 = nn.Identity(), nn.Identity()
        return block

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block.drop_path1(block.one(x))
            x = x + block.drop_path2(torch.tanh(block.two(x)))
        return x


# A network, its inputs, and of each block the layers whose outputs it adds.
Made = tuple[Callable[[], nn.Module], tuple[Tensor, ...], list[list[str]]]
NETS: dict[str, Made] = {
    "critic": (
        lambda: Critic(5, 2, TrunkSpec("simba", 4, 3)),
        (normal(BATCH, 5), normal(BATCH, 2)),
        [[f"blocks.{i}.fc2"] for i in range(3)],
    ),
    "resnet18": (
        lambda: ResNet18(1, 3, 4),
        (normal(BATCH, 1, 8, 8),),
        [[f"layer{i}.{j}.bn2"] for i in range(1, 5) for j in range(2)],
    ),
    "vit": (
        lambda: ViT((1, 8, 8), 3, width=6, depth=2),
        (normal(BATCH, 1, 8, 8),),
        [[f"blocks.{i}.attn.proj", f"blocks.{i}.mlp.fc2"] for i in range(2)],
    ),
    "gpt": (
        lambda: GPT(GPTModelConfig(layers=2, heads=2, width=8, context=4, vocab_size=9)),
        (torch.arange(BATCH * 4).view(BATCH, 4) % 9,),
        [[f"h.{i}.attn.c_proj", f"h.{i}.mlp.c_proj"] for i in range(2)],
    ),
    "timm": (
        Stream,
        (normal(BATCH, 4),),
        [[f"blocks.{i}.drop_path{j}" for j in (1, 2)] for i in range(3)],
    ),
}


def made(name: str, **params: Any) -> tuple[nn.Module, nn.Module, rlplast.Hooks]:
    torch.manual_seed(0)
    module = NETS[name][0]()
    plain = copy.deepcopy(module)
    rlplast.replace_layers(module, "stochastic_depth", **params)
    network = rlplast.Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    return module, plain, rlplast.Hooks([], network, "1000 updates")


def outputs(module: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Tensor:
    found = module(*inputs)
    return torch.cat(found) if isinstance(found, tuple) else found


def scaled(name: str, plain: nn.Module, factor: Callable[[int, str, Tensor], Any]) -> nn.Module:
    """The plain network whose branches are multiplied by factor(block from 1, path, output)."""
    for number, block in enumerate(NETS[name][2], 1):
        for path in block:

            def multiply(
                m: nn.Module, a: Any, out: Tensor, n: int = number, p: str = path
            ) -> Tensor:
                return out * factor(n, p, out)

            plain.get_submodule(path).register_forward_hook(multiply)
    return plain


@pytest.mark.parametrize("name", NETS)
def test_training_leaves_out_what_the_twin_leaves_out(name: str) -> None:
    for mode in ("linear", "uniform"):
        compare_with_the_twin(name, mode)
    without_gradients_or_training_blocks_add_their_mean(name)


def compare_with_the_twin(name: str, mode: str) -> None:
    module, plain, hooks = made(name, p=0.6, mode=mode)
    blocks = len(NETS[name][2])
    count = 0

    def factor(number: int, path: str, out: Tensor) -> Tensor:
        p = 0.6 if mode == "uniform" else 0.6 * number / blocks
        leading = out.shape[:2] if name == "critic" else out.shape[:1]
        ones = [1] * (out.ndim - len(leading))
        mask = naive.mask((*leading, *ones), p, count, derive_seed(SEED, path))
        return (mask > 0).float()

    twin, inputs = scaled(name, plain, factor), NETS[name][1]
    for count in range(3):
        found, expected = outputs(module, inputs), outputs(twin, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        hooks.step(updates=count + 1)


def without_gradients_or_training_blocks_add_their_mean(name: str) -> None:
    module, plain, _ = made(name, p=0.6)
    blocks, inputs = len(NETS[name][2]), NETS[name][1]
    twin = scaled(name, plain, lambda number, path, out: 1 - 0.6 * number / blocks)
    with torch.no_grad():
        torch.testing.assert_close(outputs(module, inputs), outputs(twin, inputs))
    found, expected = outputs(module.eval(), inputs), outputs(twin.eval(), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_networks_without_residual_blocks_are_refused() -> None:
    for net in (Actor(5, 2, TrunkSpec("mlp", 6, 2)), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(NothingToEdit, match="stochastic_depth"):
            rlplast.replace_layers(net, "stochastic_depth")
    module, _, _ = made("critic")
    with pytest.raises(ConfigError, match=r"blocks\.0\.fc2"):
        rlplast.replace_layers(module, "stochastic_depth")
