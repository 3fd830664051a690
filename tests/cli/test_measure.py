import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.cli.commands import command, printed, save, trained_pair


class Custom:
    """Something only unpickling could restore."""


class Calling:
    """What a pickle calls when it is opened."""

    def __reduce__(self) -> Any:
        return os.system, ("false",)


def measured(*words: object) -> dict:
    return printed("measure", *words)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_values_are_the_closed_forms_of_a_scaled_identity(tmp_path: Path, suffix: str):
    path = tmp_path / f"weights{suffix}"
    state = {"fc.weight": 3 * torch.eye(4), "fc.bias": torch.ones(4), "steps": torch.tensor(7)}
    save(state, path)
    result = measured(path)
    assert list(result) == ["tensors", "total"]
    (row,) = result["tensors"].values()
    assert list(result["tensors"]) == ["fc.weight"]
    expected = {"weight_norm": 6, "spectral_norm": 3, "srank": 4, "dfi": 256, "dfi_scaled": 256}
    assert {metric: row[metric] for metric in expected} == pytest.approx(expected)
    assert row["effective_rank"] == pytest.approx(4)
    assert result["total"]["srank"] is None


def test_reference_adds_differences_and_totals_follow_the_contract(tmp_path: Path):
    after, before = trained_pair(tmp_path)
    result = measured(after, "--reference", before)
    one, two = torch.load(after), torch.load(before)
    squares = {
        name: float((one[name].double() - two[name].double()).square().sum())
        for name in ("0.weight", "4.weight", "6.weight")
    }
    assert {n: row["sfe"] for n, row in result["tensors"].items()} == pytest.approx(squares)
    total = result["total"]
    assert total["sfe"] == pytest.approx(sum(squares.values()))
    assert total["weight_difference"] == pytest.approx(math.sqrt(sum(squares.values())))
    norms = [row["weight_norm"] for row in result["tensors"].values()]
    assert total["weight_norm"] == pytest.approx(math.hypot(*norms))


def test_nested_state_dict_is_picked_by_dotted_key(tmp_path: Path):
    inner = {"weight": torch.eye(2)}
    path, plain = tmp_path / "nested.pt", tmp_path / "plain.safetensors"
    tree = {"agent": {"q": inner, "v": {"weight": torch.ones(3, 3)}}, "step": 5}
    torch.save(tree, path)
    safetensors.torch.save_file(inner, plain)
    assert measured(path, "--key", "agent.q") == measured(plain)
    assert measured(path, "--key", "agent.v")["tensors"]["weight"]["srank"] == 1
    result = measured(path, "--key", "agent.q", "--reference", plain)  # the plain one has no key
    assert result["total"]["sfe"] == 0


def test_table_shows_tensors_and_total_unwrapped(tmp_path: Path):
    path = tmp_path / "weights.pt"
    name = "a.very.long.name.of.a.layer.deep.in.some.network.[0].weight"
    torch.save({name: torch.eye(2)}, path)
    outcome = command("measure", path, "--reference", path)
    assert outcome.code == 0
    assert name in outcome.out
    for word in ("weight_norm", "sfe_normalized", "total", "1.414"):
        assert word in outcome.out


def test_file_that_is_no_state_dict_lists_its_keys(tmp_path: Path):
    path = tmp_path / "run.pt"
    torch.save({"model": {"weight": torch.eye(2)}, "step": 5}, path)
    outcome = command("measure", path)
    assert outcome.code == 1
    assert outcome.err.rstrip().endswith(
        "its keys are model, step; --key of a command names one inside it"
    )
    outcome = command("measure", path, "--key", "step")
    assert outcome.code == 1
    assert "it is a int" in outcome.err
    torch.save([torch.eye(2)], path)
    assert "is a list" in command("measure", path).err
    torch.save({}, path)
    assert "its keys are none" in command("measure", path).err


def test_unknown_key_is_a_usage_error_with_a_suggestion(tmp_path: Path):
    path = tmp_path / "run.pt"
    torch.save({"model": {"weight": torch.eye(2)}, "step": 5}, path)
    outcome = command("measure", path, "--key", "modle")
    assert outcome.code == 2
    assert outcome.err.rstrip().endswith("did you mean 'model'?")
    torch.save({"weight": torch.eye(2)}, path)
    outcome = command("measure", path, "--key", "model")
    assert outcome.code == 2
    assert outcome.err.rstrip().endswith("has no 'model': allowed: weight")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_cut_file_is_damaged(tmp_path: Path, suffix: str):
    path, _ = trained_pair(tmp_path, suffix)
    whole = path.read_bytes()
    for length in (0, 1, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        outcome = command("measure", path)
        assert outcome.code == 1
        assert str(path) in outcome.err


def test_altered_bytes_of_a_pt_are_found(tmp_path: Path):
    path, _ = trained_pair(tmp_path)
    whole = bytearray(path.read_bytes())
    generator = torch.Generator().manual_seed(0)
    values = torch.load(path)["4.weight"].numpy().tobytes()
    inside = bytes(whole).index(values)
    positions = torch.randint(len(whole), (60,), generator=generator).tolist()
    for position in [inside, *positions]:
        altered = whole.copy()
        altered[position] ^= 0x10
        path.write_bytes(altered)
        outcome = command("measure", path)  # a hit on padding does no harm
        assert outcome.code in (0, 1)
        assert position != inside or outcome.code == 1
        assert outcome.code == 0 or str(path) in outcome.err


def test_garbage_and_objects_are_refused_without_being_unpickled(tmp_path: Path):
    path = tmp_path / "weights.pt"
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 200, 7):
        path.write_bytes(bytes(torch.randint(256, (size,), generator=generator).tolist()))
        assert command("measure", path).code == 1
    for held in (Custom(), Calling()):
        torch.save({"weight": torch.eye(2), "custom": held}, path)
        outcome = command("measure", path)
        assert outcome.code == 1
        assert "holds Python objects or code besides tensors" in outcome.err
        assert "weights_only" not in outcome.err
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):  # without torch's file around it
        path.write_bytes(pickle.dumps(Calling(), protocol))
        assert "holds Python objects or code besides tensors" in command("measure", path).err


def test_a_state_dict_that_holds_itself_is_read(tmp_path: Path):
    path, tree = tmp_path / "weights.pt", {"model": {"weight": torch.eye(2)}}
    tree["model"]["again"] = tree  # type: ignore[assignment]
    torch.save(tree, path)
    assert "its keys are model" in command("measure", path).err
    assert list(measured(path, "--key", "model")["tensors"]) == ["weight"]


def test_absent_file_folder_and_extension_are_usage_errors(tmp_path: Path):
    path, _ = trained_pair(tmp_path)
    for file in (tmp_path / "no.pt", tmp_path / "no.npz"):
        assert command("measure", file).code == 2
        outcome = command("measure", path, "--reference", file)
        assert outcome.code == 2
        assert str(file) in outcome.err
    (tmp_path / "folder.pt").mkdir()
    assert "is a folder" in command("measure", tmp_path / "folder.pt").err


def test_bad_tensors_are_named(tmp_path: Path):
    path, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    torch.save({"fc.weight": torch.full((2, 2), math.nan)}, path)
    outcome = command("measure", path)
    assert outcome.code == 1
    assert "'fc.weight'" in outcome.err
    torch.save({"fc.weight": torch.empty(2, 2, device="meta")}, path)
    assert "fc.weight is on the meta device" in command("measure", path).err
    torch.save({"fc.weight": torch.eye(2)}, path)
    torch.save({"fc.weight": torch.eye(3)}, other)
    outcome = command("measure", path, "--reference", other)
    assert outcome.code == 2
    assert "'fc.weight'" in outcome.err
