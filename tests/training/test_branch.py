"""Branching: a new run's folder from where another one stopped."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.clock import Time
from rlplast.core.errors import DamagedFile, RlplastError
from rlplast.training import checkpoint
from rlplast.training.branch import branch_run
from tests.core.toy import HOOKS, loop, run
from tests.runs import final, flip

EARLY = HOOKS[1:]  # without the hook at half of the run


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A run that stopped at its half."""
    made = loop(tmp_path / "prefix", hooks=EARLY)
    made.until = (Time(8, "env_steps"),)
    run(made)
    return made.folder.path


def newest(run: Path) -> Path:
    return checkpoint.newest(run / "checkpoints")[0]


def branch(prefix: Path, name: str = "arm", **info: Any) -> Path:
    out = prefix.parent / name
    branch_run(prefix, out, "total: 16 env_steps\n", {"seed": 0} | info)
    return out


def go_on(folder: Path, hooks: tuple[dict[str, Any], ...] = HOOKS) -> dict[str, Any]:
    made = loop(folder, hooks=hooks)
    made.load(newest(folder))
    run(made)
    return final(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_branches_end_as_the_whole_run_and_leave_their_prefix_and_each_other_alone(
    prefix: Path, through: dict[str, Any]
):
    before = files(prefix)
    one, other = branch(prefix, "one"), branch(prefix, "other")
    without = go_on(other, EARLY)
    assert files(prefix) == before
    assert go_on(one) == through
    shutil.rmtree(prefix)
    assert go_on(other, EARLY) == without


def test_branch_may_be_branched_where_it_stops_at_once(prefix: Path, through: dict[str, Any]):
    first = branch(prefix, "first")
    made = loop(first, hooks=EARLY)
    made.until = (Time(1, "updates"),)  # was reached long ago
    made.load(newest(first))
    clock = made.trainable.clock
    run(made)
    assert made.trainable.clock == clock
    assert (first / "metrics.jsonl").read_bytes() == (prefix / "metrics.jsonl").read_bytes()
    assert go_on(branch(first, "second")) == through


def test_a_branch_says_where_it_comes_from_and_has_the_lines_up_to_there(prefix: Path):
    whole = (prefix / "metrics.jsonl").read_bytes()
    (prefix / "metrics.jsonl").write_bytes(whole + b'{"written": "after it"}\n{"half')
    arm = branch(prefix, "deep/er/arm", host="here")
    assert (arm / "metrics.jsonl").read_bytes() == whole
    info = json.loads((arm / "run.json").read_text())
    origin = info.pop("branched_from")
    assert info == {"seed": 0, "host": "here", "status": "interrupted"}
    assert (arm / origin["run"]).resolve() == prefix.resolve()
    assert (arm / "checkpoints" / origin["checkpoint"]).is_dir()
    assert origin["clock"]["env_steps"] == 8
    assert origin["seconds"] > 0
    assert (arm / "config.yaml").read_text() == "total: 16 env_steps\n"


def test_arms_take_the_disk_of_one_or_are_copies_without_hard_links(
    prefix: Path, through: dict[str, Any], request: pytest.FixtureRequest
):
    def inodes(folder: Path) -> set[int]:
        return {p.stat().st_ino for p in (folder / "checkpoints").rglob("*") if p.is_file()}

    assert inodes(branch(prefix)) == inodes(prefix)
    request.getfixturevalue("no_hard_links")
    assert go_on(branch(prefix, "copied")) == through


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda run: flip(newest(run) / "tensors.safetensors"),
    "seal": lambda run: (newest(run) / "COMPLETE").write_text("{"),
    "checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "lines": lambda run: os.truncate(
        run / "metrics.jsonl", (run / "metrics.jsonl").stat().st_size - 1
    ),
    "receipts": lambda run: (run / "receipts.jsonl").unlink(),
}


def test_lost_end_of_a_prefix_is_not_taken_for_an_earlier_one(prefix: Path, tmp_path: Path):
    for damaged, damage in DAMAGE.items():
        again = tmp_path / damaged / "prefix"
        shutil.copytree(prefix, again)
        damage(again)
        with pytest.raises(DamagedFile) as error:
            branch(again)
        assert f"delete {again}" in str(error.value)
        assert [p.name for p in again.parent.iterdir()] == ["prefix"], damaged
    further = loop(prefix, hooks=EARLY)
    further.load(newest(prefix))
    run(further)
    with pytest.raises(DamagedFile, match=r"beyond .*step-16"):
        branch(prefix)
    assert not (prefix.parent / "arm").exists()


def test_a_full_disk_leaves_nothing_behind_and_what_a_killed_branching_left_is_replaced(
    prefix: Path, tmp_path: Path, through: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def full(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(RlplastError, match="No space left"):
            branch(prefix)
    assert [p.name for p in tmp_path.iterdir()] == ["prefix"]
    for leftover in (".arm.tmp", "arm"):
        (tmp_path / leftover / "checkpoints" / "step-8").mkdir(parents=True)
        (tmp_path / leftover / ".lock").touch()
        assert go_on(branch(prefix)) == through
        assert not (tmp_path / ".arm.tmp").exists()
        shutil.rmtree(tmp_path / "arm")
