import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from tests.cli.commands import command, network, printed, save, trained_pair
from tests.runs import files_up_to

WEIGHTS = ("0.weight", "4.weight", "6.weight")


def applied(method: str, file: Path, out: Path, *words: object) -> dict:
    return printed("apply", method, file, "--out", out, *words)


def load(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".pt":
        return torch.load(path)
    return safetensors.torch.load_file(path)


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def changed(before: Path, after: Path) -> set[str]:
    one, two = load(before), load(after)
    assert set(one) == set(two)
    assert all(one[n].dtype == two[n].dtype and one[n].shape == two[n].shape for n in one)
    return {name for name in one if raw(one[name]) != raw(two[name])}


def refused(code: int, *words: object) -> str:
    outcome = command("apply", *words)
    assert outcome.code == code
    assert outcome.out == ""
    return outcome.err.rstrip()


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".pt", {}), (".safetensors", {"iterations": 5, "polynomial": "quintic"})],
)
def test_fire_does_what_it_does_to_the_module(tmp_path: Path, suffix: str, options: dict):
    file, _ = trained_pair(tmp_path, suffix)
    out = tmp_path / f"out{suffix}"
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    receipt = applied("fire", file, out, *words)
    module = network(0)
    expected = rlplast.fire(module, **options)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(load(out)[name], tensor, rtol=1e-6, atol=1e-7)
    assert changed(file, out) == set(WEIGHTS)
    assert receipt["method"] == "fire"
    assert receipt["dfi_after"] == pytest.approx(expected.dfi_after, rel=1e-5)
    assert receipt["sfe"] == pytest.approx(expected.sfe, rel=1e-5)
    table = command("apply", "fire", file, "--out", out).out
    assert all(w in table for w in ("fire", str(file), "dfi_after", "entries_touched", "792"))


def test_packed_projections_are_edited_part_by_part_or_refused(tmp_path: Path):
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    both = nn.ModuleDict({"c_attn": nn.Linear(6, 18), "attn": nn.MultiheadAttention(6, 2)})
    for module in (nn.MultiheadAttention(6, 2), both):
        for seed, weight in enumerate(p for p in module.parameters() if p.ndim == 2):
            nn.init.normal_(weight, generator=torch.Generator().manual_seed(seed))
        torch.save(module.state_dict(), file)
        applied("fire", file, out)
        rlplast.fire(module)
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(load(out)[name], tensor)
    part = load(out)["c_attn.weight"][6:12]
    torch.testing.assert_close(part @ part.T, torch.eye(6), rtol=0, atol=0.01)
    for name in ("query_key_value", "in_proj", "qkv_proj"):  # which tell too little
        torch.save({f"attn.{name}.weight": torch.ones(18, 6)}, file)
        assert f"attn.{name}.weight is packed" in refused(2, "fire", file, "--out", file)


def test_swr_with_biases_and_norm_layers_is_that_of_the_module(tmp_path: Path):
    file, init = trained_pair(tmp_path)
    applied("swr", file, tmp_path / "out.pt", "--init", init, "--coef=0.5", "--include", "*")
    module, start = network(0), network(1)
    handle = Network("model", start)
    start.load_state_dict(module.state_dict())  # θ0 is what the handle was made with
    rlplast.swr(handle, coef=0.5)
    for name, tensor in start.state_dict().items():
        torch.testing.assert_close(load(tmp_path / "out.pt")[name], tensor)


def test_shrink_perturb_mixes_what_is_included_and_not_excluded(tmp_path: Path):
    file, init = trained_pair(tmp_path)
    out = tmp_path / "out.pt"
    words = ("--coef", 0.25, "--init", init)
    applied("shrink_perturb", file, out, *words)
    assert changed(file, out) == set(WEIGHTS)
    applied("shrink_perturb", file, out, *words, "--include", "4.*", "--include", "6.bias")
    assert changed(file, out) == {"4.weight", "4.bias", "6.bias"}
    for name in changed(file, out):
        mixture = 0.75 * load(file)[name] + 0.25 * load(init)[name]
        torch.testing.assert_close(load(out)[name], mixture)
    applied("fire", file, out, "--exclude", "0.*", "--exclude", "6.weight")
    assert changed(file, out) == {"4.weight"}
    applied("fire", file, out, "--include", "*.weight", "--exclude", "4.weight")
    assert changed(file, out) == {"0.weight", "6.weight"}


def test_init_file_means_stored_and_no_file_means_the_modules_fresh_draws(tmp_path: Path):
    file, init = trained_pair(tmp_path)
    out, again = tmp_path / "out.pt", tmp_path / "again.pt"
    applied("full_reset", file, out, "--init", init, "--include", "*")
    for name, tensor in load(out).items():
        assert torch.equal(tensor, load(init)[name]) or not tensor.is_floating_point()
    applied("full_reset", file, out)
    applied("full_reset", file, again, "--init", "fresh")
    assert changed(file, out) == set(WEIGHTS)
    assert changed(out, again) == set()
    applied("full_reset", file, again, "--seed", 1)
    assert changed(out, again) == set(WEIGHTS)
    applied("full_reset", file, out, "--include", "*", "--exclude", "*num_batches_tracked")
    module = network(0)
    rlplast.full_reset(module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(load(out)[name], tensor), name
    assert 0 < load(out)["6.bias"].abs().max() <= 16**-0.5


def test_head_reset_takes_the_linears_after_convs_or_the_last_in_the_file(tmp_path: Path):
    file, _ = trained_pair(tmp_path)
    out = tmp_path / "out.pt"
    applied("head_reset", file, out)
    assert changed(file, out) == {"4.weight", "6.weight"}
    applied("head_reset", file, out, "--layers", 1, "--include", "*")
    assert changed(file, out) == {"6.weight", "6.bias"}
    flat = {name: torch.eye(3) for name in ("first", "second", "third")}  # names without layers
    torch.save(flat, file)
    applied("head_reset", file, out)
    assert changed(file, out) == {"third"}


def test_scope_dqn_projects_convs_and_returns_linears_to_the_initial_file(tmp_path: Path):
    file, init = trained_pair(tmp_path)
    out = tmp_path / "out.pt"
    assert "--init FILE" in refused(2, "fire", file, "--out", out, "--scope", "dqn")
    applied("fire", file, out, "--scope", "dqn", "--init", init)
    assert changed(file, out) == set(WEIGHTS)
    assert torch.equal(load(out)["4.weight"], load(init)["4.weight"])
    assert not torch.equal(load(out)["0.weight"], load(init)["0.weight"])


def test_stored_dtype_is_kept_and_rounded_once(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    state = {f"w{i}": torch.randn(9, 9, generator=generator).to(d) for i, d in enumerate(dtypes)}
    init = {name: 1.003 * tensor.double() for name, tensor in state.items()}
    file, start, out = (tmp_path / name for name in ("in.pt", "init.pt", "out.pt"))
    torch.save(state, file)
    torch.save(init, start)
    applied("swr", file, out, "--init", start, "--coef", 1)
    assert changed(file, out) == set(state)  # a factor rounded to bf16 would change nothing
    for (name, result), dtype in zip(load(out).items(), dtypes, strict=True):
        torch.testing.assert_close(result, init[name].to(dtype))
        if dtype.itemsize == 2:  # equal but where the exact value lies between two numbers
            assert (result == init[name].to(dtype)).double().mean() > 0.8


def test_tied_tensors_are_edited_once_and_stay_tied(tmp_path: Path):
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    tied = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.save({"wte.weight": tied, "fc.weight": torch.ones(4, 4), "lm_head.weight": tied}, file)
    applied("fire", file, out)
    assert changed(file, out) == {"fc.weight"}  # fire leaves tied tensors unless told
    applied("fire", file, out, "--include_tied", "true", "--polynomial", "exact")
    result = load(out)
    assert result["wte.weight"].data_ptr() == result["lm_head.weight"].data_ptr()
    gram = result["wte.weight"].T @ result["wte.weight"]
    torch.testing.assert_close(gram, 5 / 4 * torch.eye(4))
    message = refused(
        2, "fire", file, "--out", out, "--include_tied", "true", "--exclude", "lm_head.*"
    )
    assert "lm_head.weight is tied to another tensor: include or exclude both" in message
    applied("fire", file, tmp_path / "out.safetensors", "--include_tied", "true")
    flat = load(tmp_path / "out.safetensors")
    assert torch.equal(flat["wte.weight"], flat["lm_head.weight"])


def test_tensors_that_share_memory_in_part_are_refused(tmp_path: Path):
    file, out = tmp_path / "in.pt", tmp_path / "out.pt"
    flat = torch.randn(24, generator=torch.Generator().manual_seed(0))
    torch.save({"a": flat[:12].view(3, 4), "b": flat[8:20].view(3, 4)}, file)
    assert "two tensors over the same memory" in refused(2, "fire", file, "--out", out)
    torch.save({"a": torch.ones(3, 1).expand(3, 4)}, file)
    assert "a.weight is expanded" in refused(2, "fire", file, "--out", out)
    torch.save({"a": flat[:12].view(3, 4), "b": flat[12:].view(3, 4).T}, file)  # side by side
    applied("fire", file, out)
    assert changed(file, out) == {"a", "b"}


def test_a_file_of_more_than_tensors_is_refused_with_the_code_that_flattens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (file, _), out = trained_pair(tmp_path), tmp_path / "out.pt"
    state = load(file)
    nested = {"epoch": 7, "optimizer": {"lr": 1}, "model": state}
    for data, found in ((nested, "epoch is a int"), (state | {"version": 2}, "version is a int")):
        torch.save(data, tmp_path / "nested.pt")
        message = refused(2, "fire", tmp_path / "nested.pt", "--out", out)
        assert f"nested.pt: {found}" in message
        assert "\n" not in message and not out.exists()
        exec(message.partition("In Python: ")[2], {"torch": torch})
        assert set(load(Path("flat.pt"))) == set(state)
    applied("fire", Path("flat.pt"), out)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
):
    file, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    state = {"w": torch.randn(256, 256, generator=torch.Generator().manual_seed(0))}
    save(state, file)
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, file, metadata={"license": "MIT"})
    applied("fire", file, out)
    file.chmod(0o640)
    whole = file.read_bytes()
    with files_up_to(len(whole) // 2):
        assert f"{file} could not be written" in refused(1, "fire", file, "--out", file)

    def fail(descriptor: int) -> None:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert "Input/output error" in refused(1, "fire", file, "--out", file)
    assert file.read_bytes() == whole
    applied("fire", file, file)
    assert changed(file, out) == set()
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [file, out]
    if suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            assert opened.metadata() == {"license": "MIT"}


BAD_USAGE = {
    "fyre FILE": "'fire'",
    "fire FILE --iteratons 5": "'iterations'",
    "fire --iteratons 5 FILE": "'iterations'",
    "fire FILE --coef 1": "iterations, polynomial",
    "fire FILE --iterations 0": "[1, 1000]",
    "fire FILE --scope dqm": "'dqn'",
    "fire FILE --exclude 4.weigth": "'4.weight'",
    "fire FILE --exclude *": "6.weight, 6.bias",
    "swr FILE": "saved before training",
    "shrink_perturb FILE": "--init fresh",
    "fire FILE --init absent.pt": "saved before",
    "fire absent.pt": "saved before",
    "fire FILE.npz": ".safetensors or .pt",
}


def test_bad_usage_is_named_and_writes_nothing(tmp_path: Path):
    file, _ = trained_pair(tmp_path)
    out = tmp_path / "out.pt"
    for line, says in BAD_USAGE.items():
        words = [word.replace("FILE", str(file)) for word in line.split()]
        assert says in refused(2, *words, "--out", out), line
        assert not out.exists()
    (tmp_path / "folder.pt").mkdir()
    for name in ("out.npz", "no/out.pt", "folder.pt"):
        assert str(tmp_path / name) in refused(2, "fire", file, "--out", tmp_path / name)
    assert "--out" in refused(2, "fire", file)
    for words in (["--iterations", "3", "fire", file], ["fire", "--iterations", "3", file]):
        assert command("apply", *words, "--out", out).code == 0


def test_weights_that_fit_no_edit_are_named(tmp_path: Path):
    file, init = trained_pair(tmp_path)
    out = tmp_path / "out.pt"
    words = ("--out", out, "--init", init)
    torch.save({**load(init), "4.weight": torch.ones(2, 2)}, init)
    assert "4.weight is of shape (2, 2)" in refused(2, "swr", file, *words)
    torch.save({"4.weight": torch.ones(16, 32)}, init)
    assert "0.weight" in refused(2, "swr", file, *words)
    torch.save({"weight": torch.ones(2, 2, dtype=torch.float16)}, file)
    torch.save({"weight": torch.full((2, 2), 1e6)}, init)
    assert "non-finite values" in refused(1, "swr", file, *words, "--coef", 1)
    torch.save({"fine.weight": torch.eye(2), "dead.weight": torch.zeros(2, 2)}, file)
    assert "dead.weight is zero" in refused(1, "fire", file, "--out", out)
    torch.save({"a.weight": torch.eye(2), "a.scale": torch.ones(2), "n": torch.tensor(3)}, file)
    assert "a.scale" in refused(2, "full_reset", file, "--out", out, "--include", "*")
    assert not out.exists()


def test_layer_with_several_weights_is_edited_weight_by_weight(tmp_path: Path):
    file, init, out = (tmp_path / name for name in ("in.pt", "init.pt", "out.pt"))
    for seed, path in enumerate((file, init)):
        draws = torch.Generator().manual_seed(seed)
        shapes = {"weight_a": (4, 3), "weight_b": (4, 4), "bias_a": (4,), "bias_b": (4,)}
        torch.save({n: torch.randn(shape, generator=draws) for n, shape in shapes.items()}, path)
    applied("swr", file, out, "--init", init, "--coef", 1, "--include", "*")
    for name, tensor in load(out).items():
        if tensor.ndim == 2:
            torch.testing.assert_close(tensor.norm(), load(init)[name].norm())
    assert changed(file, out) == set(load(file))


def test_of_a_checkpoint_only_weights_are_edited_and_measured(tmp_path: Path):
    file, out = tmp_path / "tensors.safetensors", tmp_path / "out.safetensors"
    names = ("q.fc.weight", "q.target.fc.weight", "q.fc.weight:exp_avg", "q.fc.memory_weight")
    names += ("state/trainable/experience/stack",)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(4, 3, generator=generator) for name in names}
    safetensors.torch.save_file(tensors, file)
    applied("fire", file, out)
    assert changed(file, out) == {"q.fc.weight", "q.target.fc.weight"}
    assert set(printed("measure", file)["tensors"]) == {"q.fc.weight", "q.target.fc.weight"}
