"""Packed projections of other libraries: which rows are query, key and value."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import blocks_of
from tests.methods.nets import changed, randomise, relative_error, snapshot
from tests.naive.interventions import fire_twin

transformers = pytest.importorskip("transformers")


TEXT = {"vocab_size": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


SIZES = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}


MLP = {"intermediate_size": 16}


GPT2 = {"n_embd": 12, "n_head": 3, "n_layer": 1, "n_positions": 8}


# Class of the model and its config → what projects the heads' outputs, in the first layer.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "GPTNeoXModel": (SIZES | MLP, "layers.0.attention.dense"),
    "BloomModel": ({"hidden_size": 12, "n_layer": 1, "n_head": 3}, "h.0.self_attention.dense"),
    "FalconModel": (SIZES | {"multi_query": False}, "h.0.self_attention.dense"),
    "GPTBigCodeModel": (GPT2 | {"multi_query": False}, "h.0.attn.c_proj"),
    "PersimmonModel": (SIZES | MLP | {"qk_layernorm": False}, "layers.0.self_attn.dense"),
    "DebertaModel": (SIZES | MLP, "encoder.layer.0.attention.output.dense"),
    "GPT2Model": (GPT2, "h.0.attn.c_proj"),
    "MptModel": ({"d_model": 12, "n_heads": 3, "n_layers": 1}, "blocks.0.attn.out_proj"),
    "BertModel": (SIZES | MLP, "encoder.layer.0.attention.output.dense"),
    "LlamaModel": (SIZES | MLP, "layers.0.self_attn.o_proj"),
}
VALUE = ("v", "value", "v_proj")


def model_of(name: str, **config: Any) -> Any:
    """A small model of transformers whose every parameter is drawn."""
    make = getattr(transformers, name.removesuffix("Model") + "Config")
    model = getattr(transformers, name)(make(**(TEXT | config)))
    for key, parameter in randomise(model, 1, std=0.4).named_parameters():
        if key.endswith((".q_bias", ".v_bias")):  # which DeBERTa keeps beside its projection
            nn.init.zeros_(parameter)
    return model.double().eval()


def output(model: Any) -> Tensor:
    tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    return model(tokens).last_hidden_state


def part_of(block: Any) -> str:
    return block.spec.part.partition(".")[0] or block.path.rpartition(".")[2]


@torch.no_grad()
def without(model: Any, *names: str) -> Tensor:
    """The output of a copy whose parts or layers of these names are zero."""
    changed = copy.deepcopy(model)
    hit = [b for b in blocks_of(changed) if part_of(b) in names or b.path in names]
    assert hit
    for block in hit:
        block.view.zero_()
    return output(changed)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_query_key_and_value_do_what_their_names_say(name: str) -> None:
    config, projection = MODELS[name]
    model = model_of(name, **config)
    scope = rlplast.core.method.scope.SCOPES["vit"]
    query_key = {part_of(b) for b in blocks_of(model) if scope.edit(b)}
    assert len(query_key) == 2
    query, key = (without(model, part) for part in query_key)
    # Without queries or without keys all logits are zero; the other part then does not matter.
    torch.testing.assert_close(query, key, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(query, output(model), atol=1e-3)
    # Without values heads give nothing, as if their outputs were not read.
    last = model.get_submodule(projection)
    bias = None if last.bias is None else last.bias.clone()
    nothing = copy.deepcopy(model)
    nothing.get_submodule(projection).weight.zero_()
    torch.testing.assert_close(without(model, *VALUE), output(nothing), rtol=1e-9, atol=1e-9)
    assert bias is None or torch.equal(last.bias, bias)


@torch.no_grad()
def test_fire_takes_the_heads_of_a_part_as_one_matrix() -> None:
    model = model_of("GPTNeoXModel", **MODELS["GPTNeoXModel"][0])
    before = snapshot(model)
    receipt = rlplast.fire(model, scope="vit", iterations=6)
    name = "layers.0.attention.query_key_value.weight"
    assert changed(before, model) == {name}
    old, new = (t[name].view(3, 3, 4, 12) for t in (before, snapshot(model)))  # head, part, row
    distance = 0.0
    for part in (0, 1):
        twin = fire_twin(old[:, part].reshape(12, 12).numpy(), 6, "cubic")
        ours = new[:, part].reshape(12, 12)
        assert relative_error(ours, twin) <= 1e-9
        distance += float((ours @ ours.T - torch.eye(12)).square().sum())
    assert torch.equal(new[:, 2], old[:, 2])
    assert receipt.dfi_after == pytest.approx(distance, rel=1e-6)
    assert receipt.dfi_before is not None and receipt.dfi_before > distance
    assert receipt.entries_touched == 2 * 12 * 12


GROUPED = {"num_key_value_heads": 1, "intermediate_size": 16}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "FalconModel": (SIZES | {"multi_query": True}, r"h\.0\.self_attention\.query_key_value"),
    "GPTBigCodeModel": (GPT2 | {"multi_query": True}, r"h\.0\.attn\.c_attn"),
    "Phi3Model": (SIZES | GROUPED, r"layers\.0\.self_attn\.qkv_proj"),
    "CodeGenModel": (
        {"n_embd": 16, "n_head": 4, "n_layer": 1, "rotary_dim": 2},
        r"h\.0\.attn\.qkv_proj",
    ),
}


def test_packed_layers_whose_parts_are_not_known_are_refused_by_name() -> None:
    for name, (config, path) in REFUSED.items():
        model = model_of(name, **config)
        before = snapshot(model)
        for scope in ("vit", "gpt", "all"):
            with pytest.raises(ConfigError, match=rf"fire: \S*{path}\.weight"):
                rlplast.fire(model, scope=scope)
        assert not changed(before, model), name
        rlplast.shrink_perturb(model, initial=before, coef=0.5, init="stored")  # asks no matrix


class Other(nn.Module):
    """A module around a layer, with attributes of its own."""

    def __init__(self, name: str, layer: nn.Module, **attributes: Any) -> None:
        super().__init__()
        self.add_module(name, layer)
        vars(self).update(attributes)


PARTS: list[tuple[nn.Module, list[str]]] = [
    (Other("to_qkv", nn.Linear(6, 24, bias=False)), ["q 8", "k 8", "v 8"]),  # lucidrains'
    (Other("to_kv", nn.Linear(6, 16, bias=False)), ["k 8", "v 8"]),
    (Other("kv", nn.Linear(6, 12, bias=False)), ["k 6", "v 6"]),  # timm's PVT
    (Other("Wqkv", nn.Linear(6, 18, bias=False)), ["q 6", "k 6", "v 6"]),
    (Other("qkv", nn.Conv2d(6, 18, 1, bias=False)), ["q 6", "k 6", "v 6"]),
    (Other("qkv", nn.Linear(6, 18, bias=False), head_first=True), ["packed 18"]),  # MaxViT
    (Other("qkv", nn.Linear(6, 10, bias=False)), ["packed 10"]),  # fewer keys
    (Other("query_key_value", nn.Linear(6, 18, bias=False), num_heads=2), ["packed 18"]),
    (Other("in_proj", nn.Linear(6, 18, bias=False), num_heads=2), ["q 6", "k 6", "v 6"]),
    (Other("in_proj", nn.Linear(6, 18, bias=False)), [" 18"]),  # a gated conv's
    (Other("gate_up_proj", nn.Linear(6, 20, bias=False)), ["gate 10", "up 10"]),  # Phi-3's
    (Other("kv_proj", nn.Linear(6, 12, bias=False)), ["packed 12"]),
    (Other("proj", nn.Linear(6, 18, bias=False)), [" 18"]),
]


def test_names_and_sizes_tell_the_parts() -> None:
    for module, parts in PARTS:
        found = blocks_of(module)
        assert [f"{b.spec.part} {len(b.view)}" for b in found] == parts
        assert sum(b.view.numel() for b in found) == sum(p.numel() for p in module.parameters())
