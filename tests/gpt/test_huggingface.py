import json
import math
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
from tests.refused import check_refused

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


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_model_of_theirs_computes_the_same_here(tmp_path: Path, tokens: Tensor):
    for activation, gelu in (
        ("gelu_new", "tanh"),
        ("gelu", "exact"),
        ("gelu_pytorch_tanh", "tanh"),
    ):
        model = loaded(saved(tmp_path, activation_function=activation))
        assert model.config == GPTModelConfig(2, 2, 8, 6, 13, bias=True, gelu=gelu)
        expected = theirs(activation_function=activation)(tokens).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=1e-5)
        assert model.lm_head.weight is model.wte.weight


@pytest.mark.parametrize(("bias", "gelu"), [(False, "exact"), (True, "tanh")])
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
    low = {name: t.bfloat16() for name, t in old.items()}
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


REFUSED = {
    "model_type": "gpt_neo",
    "activation_function": "relu",
    "layer_norm_epsilon": 1e-6,
    "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True,
    "add_cross_attention": True,
    "tie_word_embeddings": False,
    "n_inner": 16,
    "quantization_config": {"load_in_8bit": True},
}


def test_what_computes_something_else_is_refused(tmp_path: Path):
    about = json.loads((saved(tmp_path) / "config.json").read_text())

    def load(change: dict[str, Any]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(about | change))
        load_gpt2(tmp_path)

    rows = [({key: value}, f"{key} = {value!r}: a GPT has ") for key, value in REFUSED.items()]
    check_refused(load, rows)
    check_refused(load, [({"n_layer": v}, "cannot be read") for v in ("two", None)], DamagedFile)
    check_refused(load, [({"vocab_size": 14}, "wte.weight has shape (13, 8)")], DamagedFile)
    load({})
    with pytest.raises(ConfigError, match=r"h\.0\.\S+\.bias .*model\.bias = true"):
        load_gpt2(tmp_path, bias=False)
    store(tmp_path, stored(tmp_path) | {"lm_head.weight": torch.zeros(13, 8)})
    with pytest.raises(ConfigError, match=r"lm_head\.weight differs from wte\.weight"):
        load({})


def test_tensors_that_are_no_gpt_2s_are_named(tmp_path: Path):
    whole, name = stored(saved(tmp_path)), "h.1.mlp.c_fc.weight"
    key, extra = f"transformer.{name}", "transformer.h.2.ln_1.bias"
    value = whole[key]
    rows: list[tuple[dict[str, Tensor | None], str]] = [
        ({key: None}, f"{name} has shape None"),
        ({key: torch.zeros(8, 8)}, f"{name} has shape (8, 8)"),
        ({extra: torch.zeros(8)}, "h.2.ln_1.bias has shape (8,), needed by config.json is None"),
        ({name: value.clone()}, f"has {name} twice"),
    ]
    for bad in (math.nan, -math.inf, 1e300):
        rows.append(({key: value.double().index_fill(0, torch.tensor(3), bad)}, "is not finite"))
    check_refused(lambda change: load_gpt2(store(tmp_path, whole | change)), rows, DamagedFile)


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
    for text in ("", "[]", "{}"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"config\.json cannot be read as a GPT-2's"):
            load_gpt2(tmp_path)


def test_what_cannot_be_saved_is_refused(tmp_path: Path):
    swapped, untied, wrapped = ours(), ours(), ours()
    replace_layers(swapped, "lifecycle", layers=["h.*.mlp.c_fc"])
    untied.lm_head.weight = torch.nn.Parameter(torch.zeros(13, 8))
    wrapped.lm_head = torch.nn.Sequential(wrapped.lm_head)  # type: ignore[assignment]
    rows = [
        (swapped, "has no place in a GPT-2"),
        (untied, "lm_head.weight differs from wte.weight"),
        (wrapped, "lm_head.0.weight has no place in a GPT-2"),
    ]
    check_refused(lambda model: save_gpt2(model, tmp_path), rows)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(RlplastError, match="could not be written"):
        save_gpt2(ours(), tmp_path / "file")
