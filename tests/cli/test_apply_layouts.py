"""What `apply` and `measure` make of names, shapes and types that tell how a layer is stored."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

import rlplast
from tests.cli.commands import command, printed
from tests.cli.test_apply import applied, changed, load, refused


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _old_weight_norm(layer: nn.Linear) -> None:
    with warnings.catch_warnings(action="ignore"):
        nn.utils.weight_norm(layer)


COMPUTED: dict[str, Callable[[nn.Linear], Any]] = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "weight_norm": lambda layer: parametrizations.weight_norm(layer),
    "old_weight_norm": _old_weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer),
    "old_spectral_norm": lambda layer: spectral_norm(layer),
    "orthogonal": lambda layer: parametrizations.orthogonal(layer),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_weights_computed_from_others_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8))
    COMPUTED[kind](net[0])  # type: ignore[arg-type]
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    torch.save(net.state_dict(), file)
    for words in (("apply", "fire", file, "--out", out), ("measure", file)):
        outcome = command(*words)
        assert outcome.code == 2 and outcome.out == ""
        assert "0." in outcome.err and "is part of a parametrised weight" in outcome.err
    assert not out.exists()
    applied("fire", file, out, "--exclude", "0.*")
    assert changed(file, out) == {"1.weight"}


FLOAT8, INT = torch.float8_e4m3fn, torch.zeros(8, 6, dtype=torch.int8)
INT32 = INT.to(torch.int32)
TYPES: dict[str, tuple[dict[str, Tensor], str]] = {
    "float8": (
        {"a.weight": _draw(8, 6).to(torch.float8_e4m3fn)},
        "a.weight is torch.float8_e4m3fn",
    ),
    "complex": (
        {"a.weight": torch.complex(_draw(8, 6), _draw(8, 6))},
        "a.weight is torch.complex64",
    ),
    "int8": ({"a.weight": INT, "a.SCB": _draw(8)}, "a.weight is torch.int8"),
    "packed": ({"a.weight": INT.to(torch.uint8)}, "a.weight is torch.uint8"),
    "gptq": (
        {
            "a.qweight": INT.to(torch.int32),
            "a.qzeros": INT.to(torch.int32),
            "a.scales": _draw(2, 6),
        },
        "a.qweight",
    ),
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", TYPES)
def test_types_that_no_edit_can_write_are_refused_by_name(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    tensors, problem = TYPES[kind]
    others = {"b.weight": _draw(8, 8), "b.count": torch.tensor(3), "b.half": _draw(4, 4).bfloat16()}
    others |= {"b.mask": torch.ones(2, 2, dtype=torch.bool), "b.none": torch.zeros(0, 3)}
    others |= {"b.ids": torch.zeros(1, 9, dtype=torch.int64), "b.scalar": torch.tensor(0.5)}
    file, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    save: Any = torch.save if suffix == ".pt" else safetensors.torch.save_file
    save(tensors | others, file)
    for words in (("apply", "fire", file, "--out", out), ("measure", file)):
        outcome = command(*words)
        assert (outcome.code, outcome.out) == (2, "") and problem in outcome.err, outcome.err
    assert not out.exists()
    applied("fire", file, out, "--exclude", "a.*")
    assert changed(file, out) == {"b.weight", "b.half"}
    save(others, file)
    assert set(printed("measure", file)["tensors"]) == {"b.weight", "b.half"}
    save(
        others | {"b.weight": _draw(8, 8).to(torch.float8_e4m3fn)}, init := tmp_path / f"i{suffix}"
    )
    words = ("shrink_perturb", file, "--out", out, "--init", init, "--include", "b.weight")
    assert "b.weight is torch.float8_e4m3fn" in refused(2, *words)
    message = command("measure", file, "--reference", init).err
    assert "b.weight" in message and "torch.float8_e4m3fn" in message


def test_a_scale_beside_integers_is_no_weight_of_its_own(tmp_path: Path) -> None:
    tensors, _ = TYPES["gptq"]
    torch.save(tensors, tmp_path / "in.pt")
    words = ("fire", tmp_path / "in.pt", "--out", tmp_path / "out.pt", "--include", "a.scales")
    assert "a.scales is torch.float32, beside a.qweight" in refused(2, *words)


@pytest.mark.parametrize("inner", [64, 16])
def test_weights_of_a_gpt2_are_those_of_the_module(tmp_path: Path, inner: int) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, n_inner=inner, vocab_size=50, n_positions=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        theirs = transformers.GPT2LMHeadModel(config)
    file, init, out = (tmp_path / name for name in ("in.pt", "init.pt", "out.pt"))
    torch.save(dict(model.state_dict()), file)
    torch.save(dict(theirs.state_dict()), init)
    left = [w for name in ("*wte*", "*wpe*", "lm_head*") for w in ("--exclude", name)]
    applied("shrink_perturb", file, out, "--init", init, "--coef", 0.5, *left)
    for name in changed(file, out):
        torch.testing.assert_close(load(out)[name], (load(file)[name] + load(init)[name]) / 2)
    assert len(changed(file, out)) == 4
    applied("fire", file, out, *left)
    assert len(changed(file, out)) == 4
    rlplast.fire(model)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(load(out)[name], tensor, rtol=1e-5, atol=1e-6)
    words = [w for name in ("*c_attn*", "*c_proj*") for w in ("--exclude", name)]
    applied("fire", file, out, *left, *words)
    assert changed(file, out) == {"transformer.h.0.mlp.c_fc.weight"}


class Experts(nn.Module):
    """Four matrices in one tensor that is no layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 6, 5))


UNKNOWN: dict[str, tuple[nn.Module, str]] = {
    "experts": (Experts(), "up"),
    "lstm": (nn.LSTM(6, 5, bidirectional=True, proj_size=3), "weight_ih_l0"),
    "gru": (nn.GRU(6, 5), "weight_ih_l0"),
    "cell": (nn.LSTMCell(6, 5), "weight_ih"),
    "conv_transpose": (nn.ConvTranspose2d(4, 2, 3), "weight"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_gates_and_transposed_convs_are_refused_by_name_and_may_be_left_out(
    tmp_path: Path, kind: str
) -> None:
    layer, name = UNKNOWN[kind]
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    torch.save(nn.ModuleDict({"a": layer, "b": nn.Linear(4, 4)}).state_dict(), file)
    for method, problem in (("fire", "is packed"), ("full_reset", ": no initializer is known")):
        message = refused(2, method, file, "--out", out)
        assert f"a.{name}" in message and problem in message
    applied("fire", file, out, "--exclude", "a.*")
    assert changed(file, out) == {"b.weight"}
    applied("shrink_perturb", file, out, "--init", file, "--coef", 0.5)  # asks no matrix


def test_attention_of_torch_is_three_matrices_in_a_file_too(tmp_path: Path) -> None:
    attention = nn.MultiheadAttention(6, 2)
    torch.save(attention.state_dict(), tmp_path / "in.pt")
    applied("fire", tmp_path / "in.pt", tmp_path / "out.pt")
    rlplast.fire(attention)
    for name, tensor in attention.state_dict().items():
        torch.testing.assert_close(load(tmp_path / "out.pt")[name], tensor)
