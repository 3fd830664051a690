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
from rlplast.core.network.network import Network
from rlplast.core.rng import derive_seed
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.supervised.resnet import ResNet18
from rlplast.supervised.vit import ViT
from tests.methods.unit_nets import normal
from tests.models import assert_same
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
            x = x + block.drop_path1(block.one(x))  # type: ignore[operator]
            x = x + block.drop_path2(torch.tanh(block.two(x)))  # type: ignore[operator]
        return x


def gpt() -> nn.Module:
    return GPT(GPTModelConfig(layers=2, heads=2, width=8, context=4, vocab_size=9))


simba = TrunkSpec("simba", 4, 3)
# A network, its inputs, and of each block the layers whose outputs it adds.
Made = tuple[Callable[[], nn.Module], tuple[Tensor, ...], list[list[str]]]
NETS: dict[str, Made] = {
    "actor": (
        lambda: Actor(5, 2, simba),
        (normal(BATCH, 5),),
        [[f"blocks.{i}.fc2"] for i in range(3)],
    ),
    "critic": (
        lambda: Critic(5, 2, simba),
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
        gpt,
        (torch.arange(BATCH * 4).view(BATCH, 4) % 9,),
        [[f"h.{i}.attn.c_proj", f"h.{i}.mlp.c_proj"] for i in range(2)],
    ),
    "timm": (
        Stream,
        (normal(BATCH, 4),),
        [[f"blocks.{i}.drop_path{j}" for j in (1, 2)] for i in range(3)],
    ),
}
every_net = pytest.mark.parametrize("name", NETS)


def made(name: str, **params: Any) -> tuple[nn.Module, nn.Module, rlplast.Hooks]:
    """A network with stochastic depth, the same without, and what counts its updates."""
    torch.manual_seed(0)
    module = NETS[name][0]()
    plain = copy.deepcopy(module)
    rlplast.replace_layers(module, "stochastic_depth", **params)
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
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


@every_net
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


def test_the_mean_over_draws_is_what_evaluation_adds() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def residual_branches(self) -> list[list[str]]:
            return [["fc"]]

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fc(x)

    module = One()
    assert rlplast.replace_layers(module, "stochastic_depth", p=0.3) == ["fc"]
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    hooks, x, found = rlplast.Hooks([], network, "5000 updates"), normal(8, 4), []
    for update in range(1, 2001):
        found.append(module(x).detach())
        hooks.step(updates=update)
    drawn = torch.stack(found)
    left_out = (drawn == x).all(2)  # of whole samples, the identity path stays
    assert float(left_out.double().mean()) == pytest.approx(0.3, abs=4 * (0.21 / 16000) ** 0.5)
    assert ((drawn == x).any(2) == left_out).all()
    error = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - module.eval()(x)).abs() < 4 * error).all()


def test_a_rate_of_zero_is_the_plain_network() -> None:
    module, plain, _ = made("resnet18", p=0.0)
    inputs = NETS["resnet18"][1]
    assert torch.equal(module(*inputs), plain(*inputs))
    assert_same(dict(module.state_dict()), dict(plain.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["actor", "resnet18"])
def test_compiled_outputs_are_eager_ones_and_resume(name: str) -> None:
    torch._dynamo.reset()
    module, _, hooks = made(name, p=0.6)
    other, _, again = made(name, p=0.6)
    inputs = NETS[name][1]
    other.load_state_dict(module.state_dict())
    forward = torch.compile(other, backend="aot_eager", fullgraph=True)
    for update in range(1, 3):
        hooks.step(updates=update)
    again.load_state_dict(copy.deepcopy(hooks.state_dict()))
    torch.testing.assert_close(outputs(forward, inputs), outputs(module, inputs))
    torch._dynamo.reset()


def test_networks_without_residual_blocks_are_refused() -> None:
    for net in (Actor(5, 2, TrunkSpec("mlp", 6, 2)), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(NothingToEdit, match="stochastic_depth"):
            rlplast.replace_layers(net, "stochastic_depth")
    module, _, _ = made("actor")
    with pytest.raises(ConfigError, match=r"blocks\.0\.fc2"):
        rlplast.replace_layers(module, "stochastic_depth")
