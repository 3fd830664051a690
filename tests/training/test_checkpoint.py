import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from rlplast.core.errors import DamagedFile
from rlplast.training import checkpoint
from rlplast.training.files import link
from tests.models import FAMILIES, FORMS, OPTIMIZERS, assert_same, subject
from tests.runs import flip


def take(folder: Path, position: int, content: Any = None, **options: Any) -> checkpoint.Snapshot:
    """Take a small checkpoint with a file; `content` tells it from others."""

    def write(folder: Path) -> None:
        (folder / "replay").mkdir()
        (folder / "replay" / "rows.npy").write_bytes(b"rows %d" % position)

    tensors = {"w": torch.arange(6.0).reshape(2, 3) + position, "w@initial": torch.zeros(2, 3)}
    state = {"content": content, "array": np.arange(position)}
    at = (position, 0, position)
    return checkpoint.snapshot(folder, at, tensors, state, **{"write_files": write} | options)


def save(folder: Path, position: int, content: Any = None, **options: Any) -> Path:
    checkpoint.write(take(folder, position, content, **options))
    return folder


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


scalars = (
    st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats() | st.text(max_size=5)
)
arrays = hnp.arrays(
    st.sampled_from(["<f4", "<f8", "<i4", "<i8", "u1", "?", "<u2", "<u4", "<u8"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
trees = st.recursive(
    scalars | arrays | arrays.map(lambda a: torch.from_numpy(a)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def plain(tree: Any) -> Any:
    """Describe a tree so that equal descriptions mean equal bits and equal types."""
    if isinstance(tree, np.ndarray | Tensor):
        bits = tree.numpy() if isinstance(tree, Tensor) else tree
        return type(tree).__name__, bits.dtype.str, bits.shape, bits.tobytes()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    return type(tree).__name__, repr(tree)


@settings(max_examples=15)
@given(tree=st.dictionaries(st.text(max_size=5), trees, max_size=4))
def test_nested_state_comes_back_with_its_types_and_bits(
    tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("state") / "step-1"
    checkpoint.save(folder, (1,), {}, tree)
    _, loaded = checkpoint.load(folder)
    assert plain(loaded) == plain(tree)


def test_tensors_that_share_memory_or_are_no_block_of_it_come_back(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    given = {"all": base, "columns": base[:, ::2], "turned": base.T, "none": base[:0]}
    checkpoint.save(tmp_path / "step-1", (1,), given, {})
    loaded, _ = checkpoint.load(tmp_path / "step-1")
    assert_same(loaded, given)


@pytest.mark.parametrize("form", OPTIMIZERS | FORMS)
def test_loaded_network_trains_on_like_the_saved_one(form: str, tmp_path: Path) -> None:
    # trap: contiguous state for a channels_last parameter trains wrongly under fused Adam
    make = (OPTIMIZERS | FORMS)[form]
    for family in FAMILIES if form in OPTIMIZERS else ("conv", "stacked"):
        source = subject(family, make)
        tensors = checkpoint.network_tensors(source.network)
        checkpoint.save(tmp_path / family, (1,), tensors, {})
        targets = [subject(family, make, updates=updates, seed=9) for updates in (0, 1)]
        for target in targets:
            places = {name: (t.data_ptr(), t.stride()) for name, t in target.state().items()}
            checkpoint.load_network_tensors(target.network, checkpoint.load(tmp_path / family)[0])
            assert_same(source.snapshot(), target.snapshot())
            assert_same(source.network.initial, target.network.initial)
            now = target.state()
            assert {n: (now[n].data_ptr(), now[n].stride()) for n in places} == places
            target.x, target.y = source.x, source.y
        for made in (source, *targets):
            made.update(3)
        for target in targets:
            assert_same(source.snapshot(), target.snapshot())


def test_tied_tensor_is_stored_once_and_its_other_name_told() -> None:
    network = subject("tied").network
    tensors = checkpoint.network_tensors(network)
    assert checkpoint.aliases(network) == {"net.head.weight": "net.embed.weight"}
    assert "net.embed.weight" in tensors and "net.head.weight" not in tensors


def test_tensor_that_is_absent_or_of_another_shape_is_named() -> None:
    network = subject("mlp").network
    tensors = checkpoint.network_tensors(network)
    for own, name in (
        ({k: t for k, t in tensors.items() if k != "net.2.weight"}, "net.2.weight"),
        (tensors | {"net.0.bias": torch.zeros(1, 6)}, "net.0.bias"),
    ):
        with pytest.raises(DamagedFile, match=re.escape(f"'{name}'")):
            checkpoint.load_network_tensors(network, own)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FILES = ("tensors.safetensors", "initial.safetensors", "state.json", "replay/rows.npy")


def test_damaged_file_is_passed_over_by_name(tmp_path: Path) -> None:
    older = save(tmp_path / "step-1", 1)
    for file in (*FILES, "COMPLETE"):
        # Bits of the seal: the next test.
        for damage in (cut, Path.unlink) if file == "COMPLETE" else (cut, flip, Path.unlink):
            newer = save(tmp_path / "step-2", 2)
            damage(newer / file)
            found, [problem] = checkpoint.newest(tmp_path)
            assert found == older
            assert str(newer if file == "COMPLETE" else newer / file) in problem
            with pytest.raises(DamagedFile):
                checkpoint.load(newer)


def test_no_damage_to_the_seal_goes_further_than_the_checkpoint(tmp_path: Path) -> None:
    older, newer = save(tmp_path / "step-1", 1), save(tmp_path / "step-2", 2)
    seal = (newer / "COMPLETE").read_bytes()
    for position in range(len(seal)):
        damaged = bytearray(seal)
        damaged[position] ^= 1  # makes of a digit another digit
        (newer / "COMPLETE").write_bytes(damaged)
        found, _ = checkpoint.newest(tmp_path)
        assert found in (older, newer)
        tensors, _ = checkpoint.load(found)
        assert tensors["w"][0, 0] == (1 if found == older else 2)
    (newer / "COMPLETE").write_bytes(seal.replace(b'"format": 3', b'"format": 2'))
    with pytest.raises(DamagedFile, match="format 2"):
        checkpoint.load(newer)


def test_what_was_damaged_before_it_was_shared_is_not_sealed_as_good(tmp_path: Path) -> None:
    older = save(tmp_path / "step-1", 1)
    shared = ("replay/rows.npy", "initial.safetensors")
    for name in shared:
        flip(older / name)

    def share(folder: Path) -> None:
        (folder / "replay").mkdir()
        link(older / "replay" / "rows.npy", folder / "replay" / "rows.npy")

    newer = save(tmp_path / "step-2", 2, previous=older, write_files=share)
    seal = checkpoint.check_seal(older)["files"]
    for name in shared:
        assert checkpoint.check_seal(newer)["files"][name] == seal[name]
        assert (newer / name).read_bytes() == (older / name).read_bytes()
        assert os.path.samefile(newer / name, older / name)
    with pytest.raises(DamagedFile, match="was altered"):
        checkpoint.check(newer)


def test_initial_weights_are_written_once(tmp_path: Path) -> None:
    older = save(tmp_path / "step-1", 1)
    taken = take(tmp_path / "step-2", 2, previous=older)
    assert set(taken.tensors) == {"w", "state/array"} and not taken.initial  # not even copied
    checkpoint.write(taken)
    assert os.path.samefile(older / "initial.safetensors", taken.folder / "initial.safetensors")
    assert checkpoint.load(taken.folder)[0]["w@initial"].equal(torch.zeros(2, 3))
    cut(older / "initial.safetensors")
    again = save(tmp_path / "step-3", 3, previous=older)
    assert checkpoint.load(again)[0]["w@initial"].equal(torch.zeros(2, 3))


def test_snapshot_is_of_its_moment_however_late_it_is_written(tmp_path: Path) -> None:
    weight, moved = torch.arange(4.0), torch.arange(4.0)[::2]
    state = {"array": np.arange(3), "list": [1, [2]], "tensor": torch.ones(2), "view": moved}
    taken = checkpoint.snapshot(tmp_path / "step-1", (1,), {"w": weight, "part": weight[1:]}, state)
    for changed in (weight, moved, state["array"], state["tensor"]):
        changed += 10
    state["list"][1].append(3)
    state["list"].append(4)
    checkpoint.write(taken)
    tensors, loaded = checkpoint.load(tmp_path / "step-1")
    assert tensors["w"].tolist() == [0, 1, 2, 3] and tensors["part"].tolist() == [1, 2, 3]
    assert loaded["array"].tolist() == [0, 1, 2] and loaded["list"] == [1, [2]]
    assert loaded["tensor"].tolist() == [1, 1] and loaded["view"].tolist() == [0, 2]


def test_previous_checkpoint_may_be_deleted_meanwhile(tmp_path: Path) -> None:
    for i, lost in enumerate((".", "COMPLETE", "replay")):
        older = save(tmp_path / str(i) / "step-1", 1)
        path = older / lost
        path.unlink() if path.is_file() else shutil.rmtree(path)
        checkpoint.load(save(tmp_path / str(i) / "step-2", 2, previous=older))


def test_newest_goes_by_position_not_by_name(tmp_path: Path) -> None:
    for name, position in (("step-9", 9), ("step-100", 100), ("step-20-3-20", 20)):
        save(tmp_path / name, position)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step-100", "step-20-3-20", "step-9"]


def test_prune_keeps_the_newest_due_the_best_and_a_last_branch(tmp_path: Path) -> None:
    for position, kind in enumerate(("step", "best", "step", "step", "best", "step", "branch"), 1):
        save(tmp_path / f"{kind}-{position}", position)
    for leftover in ("step-8", ".step-9.tmp", ".best-9.tmp"):
        shutil.copytree(tmp_path / "step-1", tmp_path / leftover)
    (tmp_path / "step-8" / "COMPLETE").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "best.json").write_text("{}")
    others = {"notes", "best.json"}
    checkpoint.prune(tmp_path, 2, "best-5")
    assert names(tmp_path) == {"step-4", "step-6", "best-5", "branch-7"} | others
    save(tmp_path / "step-8", 8)
    checkpoint.prune(tmp_path, 1, "step-4")
    assert names(tmp_path) == {"step-4", "step-8"} | others
    checkpoint.unseal_newer(tmp_path, tmp_path / "step-4")
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step-4"]


def test_deletion_cut_short_leaves_nothing_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for position in (1, 2):
        save(tmp_path / f"step-{position}", position)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        checkpoint.prune(tmp_path, 1)
    assert names(tmp_path) == {"step-1", "step-2"}
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step-2"]


def test_what_has_the_name_already_is_replaced(tmp_path: Path) -> None:
    (save(tmp_path / "step-1", 1, "old") / "stray").write_text("x")
    save(tmp_path / "step-1", 1, "new")
    assert checkpoint.load(tmp_path / "step-1")[1]["content"] == "new"
    files = {"tensors.safetensors", "initial.safetensors", "state.json", "replay", "COMPLETE"}
    assert names(tmp_path / "step-1") == files


def test_everything_is_on_disk_before_the_name_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename = os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: events.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
    )
    monkeypatch.setattr(os, "rename", lambda *to: events.append("rename") or rename(*to))
    save(tmp_path / "step-1", 1)
    at = events.index("rename")
    assert {"tensors.safetensors", "state.json", "rows.npy", "replay"} < {*events[:at]}
    assert events.index("rows.npy") < events.index("COMPLETE")
    assert events[at - 1 :] == [".step-1.tmp", "rename", tmp_path.name]


def test_an_older_checkpoint_without_a_seal_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="none"):
        checkpoint.newest(tmp_path)
    for count in (1, 2, 10):
        checkpoint.save(tmp_path / f"step-{count}", (count,), {}, {})
    (tmp_path / "step-2" / checkpoint.SENTINEL).unlink()  # as when killed while it is deleted
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-10", [])
    (tmp_path / "step-10" / checkpoint.SENTINEL).unlink()
    found, [ten, two] = checkpoint.newest(tmp_path)
    assert (found.name, "step-10" in ten, "step-2" in two) == ("step-1", True, True)
    cut(found / "state.json")
    with pytest.raises(DamagedFile, match=r"step-10.*step-2"):
        checkpoint.newest(tmp_path)
