import warnings

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.blocks import BlockSpec, blocks_of, unwrap
from rlplast.core.network.network import Network
from tests.core.toy import Attention
from tests.models import build


def names(module: nn.Module) -> list[str]:
    return [b.name for b in blocks_of(module)]


def test_blocks_are_named_as_parameters_with_roles_and_kinds() -> None:
    blocks = {b.name: b for b in blocks_of(build("conv_batchnorm"))}
    assert {n: (b.role, b.kind) for n, b in blocks.items() if n.startswith(("0", "1"))} == {
        "0.weight": ("weight", "conv"),
        "0.bias": ("bias", "conv"),
        "1.weight": ("scale", "norm"),
        "1.bias": ("shift", "norm"),
        "1.running_mean": ("buffer", "norm"),
        "1.running_var": ("buffer", "norm"),
        "1.num_batches_tracked": ("buffer", "norm"),
    }
    conv, head = blocks["0.weight"].spec, blocks["7.weight"].spec
    assert (conv.fan_in, conv.fan_out) == (2 * 9, 4 * 9)
    assert (head.fan_in, head.fan_out) == (16, 3)


def test_a_tensor_without_entries_has_no_block_and_stops_no_method() -> None:
    with warnings.catch_warnings(action="ignore"):  # of an initializer without effect
        module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 0))
    assert names(module) == ["0.weight", "0.bias"]
    for method in ("fire", "weight_clip", "full_reset", "shrink_perturb", "hypersphere_project"):
        options = {"coef": 0.5, "init": "fresh"} if method == "shrink_perturb" else {}
        network = Network("q", module)
        assert rlplast.apply(method, network, **options).entries_touched in (12, 15)
    with pytest.raises(NothingToEdit, match="2"):
        rlplast.apply("redo", Network("q", module), inputs=torch.ones(2, 4))


def test_blocks_cover_every_tensor_once_and_view_its_memory() -> None:
    for family in ("mlp", "conv_batchnorm", "residual", "tied", "stacked"):
        module = build(family)
        covered: dict[int, int] = {}
        for block in blocks_of(module):
            storage = block.view.untyped_storage().data_ptr()
            covered[storage] = covered.get(storage, 0) + block.view.numel()
            assert not block.view.requires_grad
        tensors = {t.untyped_storage().data_ptr(): t.numel() for t in module.state_dict().values()}
        assert covered == tensors, family


def test_a_tied_tensor_is_one_block_that_knows_its_other_name_and_an_unknown_one_a_block_too() -> (
    None
):
    blocks = blocks_of(build("tied"))
    assert [b.name for b in blocks] == ["embed.weight", "fc.weight", "fc.bias"]
    assert blocks[0].aliases == ("head.weight",)
    assert (blocks[0].role, blocks[0].kind) == ("embedding", "embedding")

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.gain = nn.Parameter(torch.ones(1))
            self.register_buffer("age", torch.zeros(2))
            self.register_buffer("cache", torch.zeros(2), persistent=False)

    module = Scaled()
    assert {b.name: (b.role, b.kind) for b in blocks_of(module)} == {
        "weight": ("weight", "linear"),
        "bias": ("bias", "linear"),
        "gain": ("other", "other"),
        "age": ("buffer", "other"),
    }
    with pytest.raises(ConfigError, match=r"q\.gain"):
        Network("q", module, torch.optim.Adam([module.weight, module.bias]))


def test_packed_projection_is_one_block_per_part() -> None:
    module = Attention()
    blocks = {b.name: b for b in blocks_of(module)}
    assert list(blocks) == [
        *(f"c_attn.{part}.{role}" for part in "qkv" for role in ("weight", "bias")),
        "qkv.weight",
        "qkv.bias",
    ]
    key = blocks["c_attn.k.weight"]
    assert torch.equal(key.view, module.c_attn.weight[4:8])
    assert (key.spec.fan_in, key.spec.fan_out, key.layer) == (4, 4, "c_attn.k")
    key.view.fill_(7)
    assert (module.c_attn.weight[4:8] == 7).all()
    assert not (module.c_attn.weight[:4] == 7).any()


def test_multihead_attention_is_query_key_value_and_output() -> None:
    for k, v in ((4, 4), (3, 5)):  # packed; separate
        module = nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=k, vdim=v)
        blocks = {b.name: b for b in blocks_of(module)}
        assert set(blocks) == {
            *(f"{part}.{role}" for part in "qkv" for role in ("weight", "bias")),
            *("out_proj.weight", "out_proj.bias", "bias_k", "bias_v"),
        }
        shapes = [tuple(blocks[f"{part}.weight"].view.shape) for part in "qkv"]
        assert shapes == [(4, 4), (4, k), (4, v)]
        whole = sum(p.numel() for p in module.parameters())
        assert sum(b.view.numel() for b in blocks.values()) == whole


def test_transposed_weights_are_shown_in_torchs_layout() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))  # (d_in, d_out)

        def block_specs(self) -> list[BlockSpec]:
            return [BlockSpec("weight", "weight", "linear", fan_in=3, fan_out=2, transposed=True)]

    module = Conv1D()
    [block] = blocks_of(module)
    assert block.view.shape == (2, 3)
    block.view[1, 2] = 5
    assert float(module.weight.detach()[2, 1]) == 5
    assert torch.equal(block.like(torch.arange(6.0).view(3, 2)), torch.arange(6.0).view(3, 2).T)


def test_wrappers_are_taken_off() -> None:
    class DistributedDataParallel(nn.Module):  # the real one needs a process group
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    raw = build("mlp")
    compiled = torch.compile(raw, backend="aot_eager")
    assert isinstance(compiled, nn.Module)
    for wrapped in (compiled, DistributedDataParallel(raw), DistributedDataParallel(compiled)):
        assert unwrap(wrapped) is raw
        assert names(wrapped) == names(raw)
        start = {name: tensor + 1 for name, tensor in wrapped.state_dict().items()}
        network = Network("q", wrapped, torch.optim.Adam(wrapped.parameters()), initial=start)
        assert network.module is raw
        assert all(torch.equal(network.initial[b.name], b.view + 1) for b in network.blocks)
    plain = nn.Sequential()
    plain.add_module("module", nn.Linear(2, 2))  # a name is not a wrapper
    assert unwrap(plain) is plain
