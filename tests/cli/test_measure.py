import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
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


def test_table_shows_tensors_and_total_unwrapped(tmp_path: Path):
    path = tmp_path / "weights.pt"
    name = "a.very.long.name.of.a.layer.deep.in.some.network.[0].weight"
    torch.save({name: torch.eye(2)}, path)
    outcome = command("measure", path, "--reference", path)
    assert outcome.code == 0
    assert name in outcome.out
    for word in ("weight_norm", "sfe_normalized", "total", "1.414"):
        assert word in outcome.out


def test_what_is_no_flat_dict_is_named(tmp_path: Path):
    path, held = tmp_path / "run.pt", {"weight": torch.eye(2)}
    for tree, found in (
        ({"model": held, "step": 5}, "model is a dict"),
        ({"agent": {"q": held}}, "agent is a dict"),
        ({0: torch.eye(2)}, "0 is a Tensor"),
        ([torch.eye(2)], "all of it is a list"),
    ):
        torch.save(tree, path)
        outcome = command("measure", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"{path}: {found}: allowed is a flat dict of names and tensors" in outcome.err
    outcome = command("measure", path, "--key", "model")
    assert outcome.code == 2 and "unrecognized arguments: --key" in outcome.err


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
        assert "holds Python objects besides tensors, which are never unpickled" in outcome.err
        assert "weights_only" not in outcome.err
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):  # without torch's file around it
        path.write_bytes(pickle.dumps(Calling(), protocol))
        assert "holds Python objects besides tensors" in command("measure", path).err


def test_absent_file_folder_and_extension_are_usage_errors(tmp_path: Path):
    path, _ = trained_pair(tmp_path)
    for file in (tmp_path / "no.pt", tmp_path / "no.npz"):
        assert command("measure", file).code == 2
        outcome = command("measure", path, "--reference", file)
        assert outcome.code == 2
        assert str(file) in outcome.err
    (tmp_path / "folder.pt").mkdir()
    assert "allowed is a .safetensors or .pt" in command("measure", tmp_path / "folder.pt").err


def test_bad_tensors_are_named(tmp_path: Path):
    path, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    torch.save({"fc.weight": torch.full((2, 2), math.nan)}, path)
    outcome = command("measure", path)
    assert outcome.code == 1
    assert "'fc.weight'" in outcome.err
    torch.save({"fc.weight": torch.empty(2, 2, device="meta")}, path)
    assert "fc.weight is sparse, nested or without values" in command("measure", path).err
    torch.save({"fc.weight": torch.eye(2).to_sparse()}, path)
    assert "fc.weight is sparse, nested or without values" in command("measure", path).err
    torch.save({"fc.weight": torch.eye(2)}, path)
    torch.save({"fc.weight": torch.eye(3)}, other)
    outcome = command("measure", path, "--reference", other)
    assert outcome.code == 2
    assert "'fc.weight'" in outcome.err
