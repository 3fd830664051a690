import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.commands import command, printed, save, trained_pair


class Calling:
    """What a pickle calls when it is opened."""

    def __reduce__(self) -> Any:
        return os.system, ("false",)


def error(code: int, *words: object) -> str:
    outcome = command("measure", *words)
    assert (outcome.code, outcome.out) == (code, "")
    return outcome.err


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_values_are_the_closed_forms_of_a_scaled_identity(tmp_path: Path, suffix: str):
    path = tmp_path / f"weights{suffix}"
    state = {"fc.weight": 3 * torch.eye(4), "fc.bias": torch.ones(4), "steps": torch.tensor(7)}
    save(state, path)
    result = printed("measure", path)
    assert list(result) == ["tensors", "total"]
    (row,) = result["tensors"].values()
    assert list(result["tensors"]) == ["fc.weight"]
    expected = {"weight_norm": 6, "spectral_norm": 3, "srank": 4, "dfi": 256, "dfi_scaled": 256}
    assert {metric: row[metric] for metric in expected} == pytest.approx(expected)
    assert row["effective_rank"] == pytest.approx(4)
    assert result["total"]["srank"] is None


def test_reference_adds_differences_and_totals_follow_the_contract(tmp_path: Path):
    after, before = trained_pair(tmp_path)
    result = printed("measure", after, "--reference", before)
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
    for word in (name, "weight_norm", "sfe_normalized", "total", "1.414"):
        assert word in outcome.out


def test_cut_and_altered_files_are_damaged(tmp_path: Path):
    for suffix in (".pt", ".safetensors"):
        path, _ = trained_pair(tmp_path, suffix)
        whole = path.read_bytes()
        for length in (0, 9, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert str(path) in error(1, path), length
    path, _ = trained_pair(tmp_path)
    whole = path.read_bytes()
    inside = whole.index(torch.load(path)["4.weight"].numpy().tobytes())
    generator = torch.Generator().manual_seed(0)
    for position in (inside, *torch.randint(len(whole), (12,), generator=generator).tolist()):
        altered = bytearray(whole)
        altered[position] ^= 0x10
        path.write_bytes(altered)
        outcome = command("measure", path)  # a hit on padding does no harm
        assert outcome.code == 1 or (outcome.code == 0 and position != inside)
        assert outcome.code == 0 or str(path) in outcome.err


def test_garbage_and_objects_are_refused_without_being_unpickled(tmp_path: Path):
    path = tmp_path / "weights.pt"
    generator = torch.Generator().manual_seed(0)
    for size in (1, 50, 190):
        path.write_bytes(bytes(torch.randint(256, (size,), generator=generator).tolist()))
        assert command("measure", path).code == 1
    objects = "holds Python objects besides tensors, which are never unpickled"
    torch.save({"weight": torch.eye(2), "custom": Calling()}, path)
    message = error(1, path)
    assert objects in message and "weights_only" not in message
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):  # without torch's file around it
        path.write_bytes(pickle.dumps(Calling(), protocol))
        assert objects in error(1, path)


def test_what_cannot_be_measured_is_named(tmp_path: Path):
    path, other = trained_pair(tmp_path)
    absent = tmp_path / "no.npz"
    assert str(absent) in error(2, absent)
    assert str(absent) in error(2, path, "--reference", absent)
    (tmp_path / "folder.pt").mkdir()
    assert "folder.pt" in error(2, tmp_path / "folder.pt")
    eye = torch.eye(2)
    for tree, code, found in (
        ({"model": {"weight": eye}, "step": 5}, 2, "model is a dict"),
        ({0: eye}, 2, "0 is a Tensor"),
        ([eye], 2, "all of it is a list"),
        ({"fc.weight": eye * math.nan}, 1, "'fc.weight'"),
        ({"fc.weight": torch.empty(2, 2, device="meta")}, 2, "fc.weight is sparse, nested or with"),
        ({"fc.weight": eye.to_sparse()}, 2, "fc.weight is sparse, nested or with"),
    ):
        torch.save(tree, path)
        assert found in error(code, path), found
    torch.save({"fc.weight": eye}, path)
    torch.save({"fc.weight": torch.eye(3)}, other)
    assert "'fc.weight'" in error(2, path, "--reference", other)
