import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.core.method.install import replace_layers
from rlplast.gpt.huggingface import load_gpt2, save_gpt2
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.methods.nets import randomise

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 13}


def theirs(**config: Any) -> Any:
    """A GPT-2 of transformers whose every parameter is drawn, biases and norms too."""
    with torch.random.fork_rng():
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(SIZES | config)))
    return randomise(model, 1, std=0.3).eval()


def saved(folder: Path, **config: Any) -> Path:
    theirs(**config).save_pretrained(folder)
    return folder


def ours(**config: Any) -> GPT:
    sizes = {"layers": 2, "heads": 2, "width": 8, "context": 6, "vocab_size": 13} | config
    return randomise(GPT(GPTModelConfig(**sizes)), 2, std=0.3).eval()


def loaded(folder: Path, **options: Any) -> GPT:
    config, state = load_gpt2(folder, **options)
    model = GPT(config)
    model.load_state_dict(state)
    return model.eval()


def stored(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def store(folder: Path, tensors: Mapping[str, Tensor | None]) -> Path:
    kept = {name: t.contiguous() for name, t in tensors.items() if t is not None}
    safetensors.torch.save_file(kept, folder / "model.safetensors")
    return folder


def edit(folder: Path, change: Mapping[str, Tensor | None]) -> Path:
    """Replace tensors of a saved model, or take them out."""
    return store(folder, {**stored(folder), **change})


def describe(folder: Path, **change: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_model_of_theirs_computes_the_same_here(tmp_path: Path, tokens: Tensor):
    model = loaded(saved(tmp_path))
    assert model.config == GPTModelConfig(2, 2, 8, 6, 13, bias=True)
    expected = theirs()(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=1e-5)
    assert model.lm_head.weight is model.wte.weight


@pytest.mark.parametrize(("activation", "gelu"), [("gelu", "exact"), ("gelu_pytorch_tanh", "tanh")])
@torch.no_grad()
def test_their_name_of_the_gelu_is_ours(tmp_path: Path, tokens: Tensor, activation: str, gelu: str):
    model = loaded(saved(tmp_path, activation_function=activation))
    assert model.config.gelu == gelu
    expected = theirs(activation_function=activation)(tokens).logits
    torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_a_model_of_ours_computes_the_same_there(
    tmp_path: Path, tokens: Tensor, bias: bool, gelu: str
):
    model = ours(bias=bias, gelu=gelu)
    save_gpt2(model, tmp_path / "new" / "folder")
    there = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "new" / "folder").eval()
    torch.testing.assert_close(there(tokens).logits, model(tokens), rtol=1e-5, atol=1e-5)
    biases = [p for name, p in there.named_parameters() if name.endswith(".bias")]
    assert len(biases) == 2 * 6 + 1
    assert all(bool(p.count_nonzero()) == bias for p in biases)
    targets = tokens.roll(-1, 1)
    shifted = there(tokens, labels=tokens).loss
    torch.testing.assert_close(model.loss(tokens[:, :-1], targets[:, :-1]), shifted)


@pytest.mark.parametrize("bias", [False, True])
def test_there_and_back_is_every_bit(tmp_path: Path, bias: bool):
    model = ours(bias=bias)
    save_gpt2(model, tmp_path)
    back = loaded(tmp_path, bias=bias)
    assert back.config == model.config
    state = back.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    first = (tmp_path / "model.safetensors").read_bytes()
    save_gpt2(back, tmp_path)  # over what is there
    assert (tmp_path / "model.safetensors").read_bytes() == first
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


@torch.no_grad()
def test_old_files_without_prefix_and_with_masks_are_read(tmp_path: Path, tokens: Tensor):
    expected = loaded(saved(tmp_path))(tokens)
    old = {name.removeprefix("transformer."): t for name, t in stored(tmp_path).items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 6, 6) for i in (0, 1)}
    old |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in (0, 1)}
    old["lm_head.weight"] = old["wte.weight"].clone()
    assert torch.equal(loaded(store(tmp_path, old))(tokens), expected)


def test_low_precision_becomes_float32(tmp_path: Path):
    low = {name: t.bfloat16() for name, t in stored(saved(tmp_path)).items()}
    assert {t.dtype for t in load_gpt2(store(tmp_path, low))[1].values()} == {torch.float32}


@torch.no_grad()
def test_a_padded_vocabulary_changes_no_logit_and_hardly_the_loss(tmp_path: Path, tokens: Tensor):
    plain, padded = loaded(saved(tmp_path)), loaded(tmp_path, vocab_size=16)
    assert padded.config.vocab_size == 16
    torch.testing.assert_close(padded(tokens)[..., :13], plain(tokens))
    rise = padded.loss(tokens, tokens) - plain.loss(tokens, tokens)
    assert 0 < rise <= math.log(1 + 3 / 13)
    assert torch.equal(loaded(tmp_path, vocab_size=13)(tokens), plain(tokens))
    with pytest.raises(ConfigError, match=r"vocab_size = 12: .* has 13 tokens"):
        load_gpt2(tmp_path, vocab_size=12)


def test_a_head_of_its_own_and_biases_that_are_not_zero_do_not_get_lost(tmp_path: Path):
    says = r"h\.0\.\S+\.bias is not zero: .* set model\.bias = true"
    with pytest.raises(ConfigError, match=says):
        load_gpt2(saved(tmp_path), bias=False)
    says = r"model\.safetensors: lm_head\.weight differs from wte\.weight: a GPT ties the two"
    with pytest.raises(ConfigError, match=says):
        load_gpt2(edit(tmp_path, {"lm_head.weight": torch.zeros(13, 8)}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt_neo"),
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("n_inner", 16),
        ("quantization_config", {"load_in_8bit": True}),
    ],
)
def test_what_computes_something_else_is_refused(tmp_path: Path, key: str, value: Any):
    with pytest.raises(ConfigError, match=re.escape(f"config.json: {key} = {value!r}: a GPT has ")):
        load_gpt2(describe(saved(tmp_path), **{key: value}))


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path):
    name, extra = "h.1.mlp.c_fc.weight", "h.2.ln_1.bias"
    whole = stored(saved(tmp_path))
    for change, says in (
        ({name: None}, rf"has no tensor '{name}': .*tied to another one"),
        ({name: torch.zeros(8, 8)}, rf"{name} has shape \(8, 8\), by config.json it has"),
        ({extra: torch.zeros(8)}, rf"has a tensor '{extra}', of which a GPT has"),
    ):
        store(tmp_path, whole | {f"transformer.{n}": tensor for n, tensor in change.items()})
        with pytest.raises(DamagedFile, match=says):
            load_gpt2(tmp_path)
    with pytest.raises(DamagedFile, match=r"wte\.weight has shape \(13, 8\)"):
        load_gpt2(describe(store(tmp_path, whole), vocab_size=14))


@pytest.mark.parametrize("value", [2.9, "2", True, float("inf"), None])
def test_a_size_that_is_no_whole_number_is_refused(tmp_path: Path, value: Any):
    with pytest.raises(DamagedFile, match=rf"n_layer = {value!r} is no whole number"):
        load_gpt2(describe(saved(tmp_path), n_layer=value))


def test_weights_that_are_quantised_or_not_finite_or_there_twice_are_refused(tmp_path: Path):
    name = "transformer.h.1.mlp.c_fc.weight"
    whole = stored(saved(tmp_path))[name]
    for dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool):
        with pytest.raises(DamagedFile, match=rf"{name} is {dtype}: allowed are torch\.float16"):
            load_gpt2(edit(tmp_path, {name: whole.to(dtype)}))
    for bad in (math.nan, -math.inf, 1e300):
        damaged = whole.double()
        damaged[3, 4] = bad
        with pytest.raises(DamagedFile, match=rf"{name} has a value that is not finite"):
            load_gpt2(edit(tmp_path, {name: damaged}))
    edit(tmp_path, {name: whole, name.removeprefix("transformer."): whole.clone()})
    with pytest.raises(DamagedFile, match=r"has h\.1\.mlp\.c_fc\.weight twice, with the prefix"):
        load_gpt2(tmp_path)


def test_absent_and_damaged_files_are_told_apart(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        load_gpt2(tmp_path)
    path = saved(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match=r"model\.safetensors is damaged"):
            load_gpt2(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors does not exist: .*save_pretrained"):
        load_gpt2(tmp_path)
    for text in ("", "[]", "{}", '{"n_layer": "two"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"config\.json cannot be read as a GPT-2's"):
            load_gpt2(tmp_path)


def test_ties_and_layers_that_theirs_has_not_are_refused(tmp_path: Path):
    tied, untied, swapped = ours(), ours(), ours()
    tied.h[1].mlp.c_fc.weight = tied.h[0].mlp.c_fc.weight  # type: ignore[union-attr]
    untied.lm_head.weight = torch.nn.Parameter(untied.wte.weight.detach().clone())
    replace_layers(swapped, "lifecycle", layers=["h.*.mlp.c_fc"])
    for model, says in (
        (tied, r"0\.mlp\.c_fc\.weight is tied to h\.1\.mlp\.c_fc\.weight: .* tied to nothing"),
        (untied, r"wte\.weight is tied to nothing: .* tied to lm_head\.weight"),
        (swapped, r"h\.0\.mlp\.c_fc\.\w+ has no place in a GPT-2"),
    ):
        with pytest.raises(ConfigError, match=says):
            save_gpt2(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RlplastError, match="could not be written"):
        save_gpt2(ours(), tmp_path / "file")
