import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.network.blocks import Block, blocks_of
from rlplast.core.network.network import Network
from tests.core.toy import Attention
from tests.models import build


class Conv1D(nn.Module):
    """As in transformers: square, so that no shape tells how it lies."""

    def __init__(self, d_in: int = 4, d_out: int = 4) -> None:
        super().__init__()
        self.nf = d_out
        self.weight = nn.Parameter(torch.randn(d_in, d_out))
        self.bias = nn.Parameter(torch.randn(d_out))


class _PackedConv1D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_fc, self.c_proj = Conv1D(4, 12), Conv1D(4, 16), Conv1D(4, 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(300, 200),
    "conv": lambda: nn.Conv2d(8, 64, 3, groups=4),
    "embedding": lambda: nn.Embedding(400, 50, padding_idx=3),
    "layer_norm": lambda: nn.LayerNorm(5),
    "batch_norm": lambda: nn.BatchNorm1d(5),
    "attention": lambda: nn.MultiheadAttention(64, 4),
    "attention_separate": lambda: nn.MultiheadAttention(64, 4, kdim=100, vdim=30),
}


def test_fresh_weights_follow_the_law_of_torchs_own_layer() -> None:
    for which, make in LAYERS.items():
        torch.random.default_generator.manual_seed(0)
        module = make()
        start = {b.name: b.view.clone() for b in blocks_of(module)}
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor.fill_(9)
        network = Network("q", module)
        network.initialise(generator(1))
        for block in network.blocks:
            own, theirs = block.view, start[block.name]
            assert own.dtype == theirs.dtype
            if len(theirs.unique()) == 1:  # a constant: norms, zero biases, statistics
                assert torch.equal(own, theirs), (which, block.name)
                continue
            assert not torch.equal(own, theirs)
            assert float(own.std()) == pytest.approx(float(theirs.std()), rel=0.15), block.name
            assert float(own.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.15)
            assert torch.equal(own.eq(0).all(-1), theirs.eq(0).all(-1))  # padding row


def test_a_law_may_be_given_or_declared_and_is_asked_for_where_none_is_known() -> None:
    module = nn.Module()
    module.register_parameter("log_alpha", nn.Parameter(torch.tensor(0.5)))
    with pytest.raises(ConfigError, match=r"log_alpha: no initializer is known for a Mod"):
        Network("temperature", module).initialise(generator())
    given = Network("temperature", module, init=lambda block, g: torch.tensor(-4.6))
    given.initialise(generator())
    assert float(module.get_parameter("log_alpha").detach()) == pytest.approx(-4.6)

    class Ones(nn.Linear):
        def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
            return torch.ones(block.view.shape)

    ones = Ones(3, 2)
    Network("q", ones).initialise(generator())
    assert (ones.weight == 1).all() and (ones.bias == 1).all()

    low = Network("q", nn.Linear(30, 20).to(torch.bfloat16))
    fresh = low.fresh(low.blocks[0], generator())
    assert fresh.dtype == torch.float32  # not yet rounded
    assert not torch.equal(fresh, fresh.to(torch.bfloat16).float())

    buffer = nn.Module()
    buffer.register_buffer("count", torch.tensor([3, 4]))
    network = Network("q", buffer)
    network.blocks[0].view.fill_(9)
    assert network.fresh(network.blocks[0], generator()).tolist() == [3, 4]


def test_initial_weights_are_a_copy_of_their_own_or_of_a_state_dict() -> None:
    made = {"packed": Attention, "transposed": Conv1D, "transposed_packed": _PackedConv1D}
    for family in ("tied", "stacked", *made):
        module = made[family]() if family in made else build(family)
        state, own = copy.deepcopy(module.state_dict()), Network("q", module)
        given = Network("q", module, initial=module.state_dict())  # which moves with its module
        with torch.no_grad():
            for param in module.parameters():
                param.mul_(3)
        network = Network("q", module, initial=state)
        again = Network("q", module, initial=network.initial)
        for block in network.blocks:
            torch.testing.assert_close(network.initial[block.name] * 3, block.view)
            for other in (again, own, given):
                assert torch.equal(other.initial[block.name], network.initial[block.name])
        rlplast.full_reset(network, init="stored")
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(tensor, state[name])
    module = build("tied")  # which may be given by any of its names
    [block] = [b for b in blocks_of(module) if b.aliases]
    state = {k: v + 1 for k, v in module.state_dict().items() if k != block.name}
    assert torch.equal(Network("q", module, initial=state).initial[block.name], block.view + 1)


def test_initialise_draws_the_same_for_network_initial_and_followers() -> None:
    module = build("stacked")
    target = copy.deepcopy(module)
    network = Network("q", module, followers={"target": target})
    network.initialise(generator(1))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name])
    for block in network.blocks:
        assert torch.equal(network.initial[block.name], block.view)
    assert network.followers["target"].initial is network.initial
    bound = 1 / math.sqrt(5)
    assert float(module.get_parameter("fc1.weight").abs().max().detach()) <= bound


def test_trainable_parameters_are_in_one_optimizer() -> None:
    module = build("mlp")
    optimizer = torch.optim.Adam([p for n, p in module.named_parameters() if n != "2.bias"])
    with pytest.raises(ConfigError, match=r"q\.2\.bias .*no optimizer"):
        Network("q", module, optimizer)
    two = [optimizer, torch.optim.SGD([module[0].bias, module[2].bias], lr=0.1)]  # type: ignore[index,union-attr]
    with pytest.raises(ConfigError, match=r"q\.0\.bias .*2 optimizers"):
        Network("q", module, two)
    module.get_parameter("2.bias").requires_grad_(False)
    assert Network("q", module, optimizer)
    module.append(nn.Linear(3, 2))  # as when a module is made anew
    with pytest.raises(ConfigError, match=r"q\.5\.weight .*no optimizer"):
        Network("q", module, optimizer)


def test_modules_and_initial_weights_that_cannot_be_edited_are_refused_by_name() -> None:
    class OnMPS(nn.Parameter):  # as this machine has none
        device = torch.device("mps", 0)  # type: ignore[assignment]

    apples, shared = nn.Linear(2, 2), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    apples.weight = OnMPS(torch.zeros(2, 2))
    shared[1].weight = nn.Parameter(shared[0].weight.data)  # meant as a tie, and none to torch
    cases: list[tuple[Any, str]] = [
        (5, "int"),
        (nn.Sequential(nn.LazyLinear(3)), r"net\.0\.weight"),
        (torch.jit.ScriptModule(), "scripted"),
        (nn.Embedding.from_pretrained(torch.eye(3).to_sparse()), r"net\.weight is torch\.sparse"),
        (nn.Sequential(nn.Linear(2, 2, device="meta")), r"0\.weight is on the meta"),
        (apples, r"net\.weight is on mps"),
        (shared, r"net\.1\.weight and net\.0\.weight"),
    ]
    for module, says in cases:
        with pytest.raises((ConfigError, BadWeights), match=says):
            Network("net", module)
    module = nn.Linear(3, 2)
    for initial, says in (
        ({"weight": module.weight}, r"net\.bias is absent"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"net\.weight is of shape"),
    ):
        with pytest.raises(ConfigError, match=says):
            Network("net", module, initial=initial)
    average = torch.optim.swa_utils.AveragedModel(module)
    with pytest.raises(ConfigError, match="'ema'"):
        Network("q", module, followers={"ema": average})


def test_follower_built_differently_is_refused() -> None:
    module = build("mlp")
    wider = nn.Sequential(nn.Linear(4, 3))
    shallow = nn.Sequential(nn.Linear(5, 3))
    fewer = nn.Sequential(*list(copy.deepcopy(module).children())[:3])
    for other in (wider, shallow, fewer):
        with pytest.raises(ConfigError, match="target"):
            Network("q", module, followers=other)
    same = build("mlp")
    assert Network("q", module, followers=same).followers["target"].module is same
