"""What `apply` and `measure` make of names, shapes and types that tell how a layer is stored."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

import rlplast
from tests.cli.commands import command, printed, save
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


def test_weights_computed_from_others_are_refused_by_name(tmp_path: Path) -> None:
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    for kind, compute in COMPUTED.items():
        net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8))
        compute(net[0])  # type: ignore[arg-type]
        torch.save(net.state_dict(), file)
        for words in (("apply", "fire", file, "--out", out), ("measure", file)):
            outcome = command(*words)
            assert (outcome.code, outcome.out) == (2, ""), kind
            assert "0." in outcome.err and "is part of a parametrised weight" in outcome.err, kind
        applied("fire", file, tmp_path / "other.pt", "--exclude", "0.*")
        assert changed(file, tmp_path / "other.pt") == {"1.weight"}, kind
    assert not out.exists()


INT = torch.zeros(8, 6, dtype=torch.int8)
FLOAT8 = _draw(8, 6).to(torch.float8_e4m3fn)
GPTQ = {"a.qweight": INT.int(), "a.qzeros": INT.int(), "a.scales": _draw(2, 6)}
TYPES: list[tuple[dict[str, Tensor], str]] = [
    ({"a.weight": FLOAT8}, "a.weight is torch.float8_e4m3fn"),
    ({"a.weight": torch.complex(_draw(8, 6), _draw(8, 6))}, "a.weight is torch.complex64"),
    ({"a.weight": INT, "a.SCB": _draw(8)}, "a.weight is torch.int8"),
    ({"a.weight": INT.byte()}, "a.weight is torch.uint8"),
    (GPTQ, "a.qweight"),
]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_types_that_no_edit_can_write_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    others = {"b.weight": _draw(8, 8), "b.count": torch.tensor(3), "b.half": _draw(4, 4).bfloat16()}
    others |= {"b.mask": torch.ones(2, 2, dtype=torch.bool), "b.none": torch.zeros(0, 3)}
    others |= {"b.ids": torch.zeros(1, 9, dtype=torch.int64), "b.scalar": torch.tensor(0.5)}
    file, init, out = (tmp_path / f"{name}{suffix}" for name in ("in", "init", "out"))
    for tensors, problem in TYPES:
        save(tensors | others, file)
        for words in (("apply", "fire", file, "--out", out), ("measure", file)):
            outcome = command(*words)
            assert (outcome.code, outcome.out) == (2, "") and problem in outcome.err, problem
        assert not out.exists()
        applied("fire", file, out, "--exclude", "a.*")
        assert changed(file, out) == {"b.weight", "b.half"}
        out.unlink()
    message = refused(2, "fire", file, "--out", out, "--include", "a.scales")
    assert "a.scales is torch.float32, beside a.qweight" in message  # no weight of its own
    save(others, file)
    assert set(printed("measure", file)["tensors"]) == {"b.weight", "b.half"}
    save(others | {"b.weight": FLOAT8}, init)
    words = ("shrink_perturb", file, "--out", out, "--init", init, "--include", "b.weight")
    assert "b.weight is torch.float8_e4m3fn" in refused(2, *words)
    message = command("measure", file, "--reference", init).err
    assert "b.weight" in message and "torch.float8_e4m3fn" in message


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


UNKNOWN: list[tuple[dict[str, Tensor], str]] = [
    ({"up": _draw(4, 6, 5)}, "up"),  # four matrices in one tensor that is no layer's weight
    ({"weight_sigma": _draw(4, 6), "weight_epsilon": _draw(4, 6)}, "weight_sigma"),  # of noise
    ({"actor_logstd": torch.full((1, 2), -0.5)}, "actor_logstd"),  # as CleanRL keeps it
    (nn.LSTM(6, 5, bidirectional=True, proj_size=3).state_dict(), "weight_ih_l0"),
    (nn.GRU(6, 5).state_dict(), "weight_ih_l0"),
    (nn.LSTMCell(6, 5).state_dict(), "weight_ih"),
    (nn.ConvTranspose2d(4, 2, 3).state_dict(), "weight"),
]


def test_gates_and_transposed_convs_are_refused_by_name_and_may_be_left_out(
    tmp_path: Path,
) -> None:
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    for layer, name in UNKNOWN:
        others = {"b.weight": _draw(4, 4), "b.bias": _draw(4)}
        torch.save({f"a.{key}": tensor for key, tensor in layer.items()} | others, file)
        for method, problem in (("fire", "is packed"), ("full_reset", ": no initializer is known")):
            message = refused(2, method, file, "--out", out)
            assert f"a.{name}" in message and problem in message, (layer, method)
        applied("fire", file, out, "--exclude", "a.*")
        assert changed(file, out) == {"b.weight"}, layer
        applied("shrink_perturb", file, out, "--init", file, "--coef", 0.5)  # asks no matrix
