"""What may go wrong with a run's folder: damaged, in use, full, not empty."""

import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rlplast.core.clock import Time
from rlplast.core.errors import RlplastError
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.training import checkpoint
from rlplast.training.run_folder import RunFolder
from tests.cli.commands import command
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.runs import (
    TINY,
    Killed,
    at_step,
    files_up_to,
    final,
    flip,
    forget,
    kill,
    lines,
    status,
)


@pytest.fixture
def halfway(through: Path, tmp_path: Path) -> Path:
    """A copy of the run as it would be if killed after its checkpoint at 60 env_steps."""
    run = tmp_path / "run"
    shutil.copytree(through, run)
    forget(run, after=60)
    return run


# Damaged.


def cut(path: Path) -> None:
    (path / "tensors.safetensors").write_bytes((path / "tensors.safetensors").read_bytes()[:999])


def reseal(path: Path) -> None:
    """Make the manifest match what lies there."""
    seal = json.loads((path / "COMPLETE").read_text())
    for name in seal["files"]:
        data = (path / name).read_bytes()
        seal["files"][name] = [len(data), zlib.crc32(data)]
    (path / "COMPLETE").write_text(json.dumps(seal))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "999 bytes": cut,
    "altered": lambda path: flip(path / "state.json"),
    "missing": lambda path: next((path / "replay").iterdir()).unlink(),
    "not finished": lambda path: (path / "COMPLETE").unlink(),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_damaged_checkpoint_is_passed_over_with_its_reason(
    reason: str, halfway: Path, expected: dict[str, Any]
) -> None:
    DAMAGES[reason](halfway / "checkpoints" / "step-60")
    messages: list[str] = []
    api.resume(halfway, report=messages.append)
    assert len(messages) == 2
    assert reason in messages[0] and "step-48" in messages[1]
    assert final(halfway) == expected
    checkpoint.check(halfway / "checkpoints" / "step-60")  # written anew


def test_a_config_edited_before_a_resume_is_said(halfway: Path) -> None:
    path = halfway / "config.yaml"
    edited = {"threads": 2, "seed": 99}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | edited))
    messages: list[str] = []
    try:
        with pytest.raises(Killed):
            api.resume(halfway, report=messages.append, observer=at_step(1, kill))
    finally:
        torch.set_num_threads(1)
    for key, now in edited.items():
        said = [words for words in messages if f"{key} = " in words]
        assert len(said) == 1 and f"its config.yaml says {now}" in said[0]


def test_no_usable_checkpoint_is_exit_1(halfway: Path) -> None:
    for path in (halfway / "checkpoints").iterdir():
        cut(path)
    outcome = command("resume", halfway)
    assert outcome.code == 1
    assert "no usable checkpoint in" in outcome.err
    assert outcome.err.count("/tensors.safetensors has 999 bytes, written were") == 2
    more = len(list((halfway / "checkpoints").iterdir())) - 2
    assert outcome.err.endswith(f"; and {more} more\n")


def test_state_that_fits_its_manifest_and_no_run_is_exit_1(halfway: Path) -> None:
    folder = halfway / "checkpoints" / "step-60"
    saved = (folder / "state.json").read_text()
    for change in (
        lambda state: state.pop("hooks"),
        lambda state: state["clock"].update(updates="many"),
        lambda state: state["trainable"]["experience"].update(credit=None),
        lambda state: state["trainable"]["experience"]["replay"].update(rows_written=[10**9, 3]),
        lambda state: state.update(lengths={"ietrics.jsonl": 3}),
    ):
        state = json.loads(saved)
        change(state)
        (folder / "state.json").write_text(json.dumps(state))
        reseal(folder)
        outcome = command("resume", halfway)
        assert outcome.code == 1 and outcome.err.count("\n") == 1
        assert "step-60" in outcome.err


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values of a state; of a list to the first."""
    if isinstance(tree, dict | list):
        keys = tree if isinstance(tree, dict) else range(min(len(tree), 1))
        for key in keys:
            yield from leaves(tree[key], (*path, key))
    else:
        yield path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # a tensor in an array's place
@pytest.mark.parametrize("kind", KINDS)
def test_null_in_place_of_any_value_of_a_state_is_refused_or_means_nothing(
    kind: str, tmp_path: Path
) -> None:
    config = small_run(kind, write_corpora(tmp_path))
    total = read_config(config).total_time()
    half = Time(int(total.value * 0.6), total.unit)
    run = api.train(config, tmp_path / "run", until=(half,)).path
    found, _ = checkpoint.newest(run / "checkpoints")
    saved, refused = (found / "state.json").read_text(), 0
    for path in leaves(json.loads(saved)):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        for other in (copy / "checkpoints").iterdir():
            if other.name != found.name:
                shutil.rmtree(other)
        (copy / "run.json").write_text(json.dumps({"status": "interrupted"}))
        state = json.loads(saved)
        node = state
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = None
        (copy / "checkpoints" / found.name / "state.json").write_text(json.dumps(state))
        reseal(copy / "checkpoints" / found.name)
        try:
            api.resume(copy)
        except RlplastError:  # any other error is a traceback
            refused += 1
    assert refused > 0


def test_line_altered_before_the_checkpoint_is_named_and_the_run_goes_on(
    halfway: Path, expected: dict[str, Any]
) -> None:
    path = halfway / "metrics.jsonl"
    text = path.read_bytes()
    place = text.index(b'"train/loss": ') + len(b'"train/loss": ')
    digit = next(i for i in range(place, len(text)) if chr(text[i]).isdigit())
    path.write_bytes(text[:digit] + bytes([text[digit] ^ 1]) + text[digit + 1 :])
    messages: list[str] = []
    run = api.resume(halfway, report=messages.append)
    line = text[:digit].count(b"\n")
    found = re.search(r"metrics\.jsonl was altered in lines (\d+) to (\d+) since", messages[0])
    assert found is not None and int(found[1]) <= line + 1 <= int(found[2])
    assert run.info["altered"] == {"metrics.jsonl": [int(found[1]), int(found[2])]}
    pairs = zip(lines(halfway, "metrics"), expected["metrics"], strict=True)
    differing = [a != b for a, b in pairs]
    assert differing.index(True) == line and sum(differing) == 1
    assert final(halfway)["tensors.safetensors"] == expected["tensors.safetensors"]


def test_actions_out_of_range_in_a_replay_are_exit_1(halfway: Path) -> None:
    folder = halfway / "checkpoints" / "step-60"
    (path,) = (folder / "replay").glob("env0000-records-*.npy")
    records = np.load(path)
    records["action"][3] = 77
    with path.open("r+b") as file:
        file.seek(-records.nbytes, 2)
        file.write(records.tobytes())
    reseal(folder)
    outcome = command("resume", halfway)
    assert outcome.code == 1
    assert f"replay {folder / 'replay'} holds actions from 0 to 77" in outcome.err


def test_half_a_line_of_a_killed_run_does_not_hide_the_others(halfway: Path) -> None:
    rows = api.load(halfway).lines()
    with (halfway / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 4')
    assert api.load(halfway).lines() == rows
    (halfway / "run.json").write_text('{"status": ')
    outcome = command("resume", halfway)
    assert outcome.code == 1 and "run.json" in outcome.err


def test_leftovers_of_a_killed_process_are_removed(halfway: Path, expected: dict[str, Any]) -> None:
    checkpoints = halfway / "checkpoints"
    shutil.copytree(checkpoints / "step-60", checkpoints / ".step-72.tmp")
    (checkpoints / "step-12" / "COMPLETE").unlink()  # killed while deleting it
    (halfway / ".run.json.tmp").write_text("{")
    api.resume(halfway)
    assert final(halfway) == expected
    assert not list(checkpoints.glob(".*")) and not (checkpoints / "step-12").exists()


# A full disk.


def test_disk_that_is_full_ends_the_run_with_exit_1_and_resume_equals(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY))
    # Before the first update there is no optimizer state; later checkpoints do not fit.
    with files_up_to(2_000_000):
        outcome = command("train", config, "--out", run)
    assert outcome.code == 1
    assert "could not be written" in outcome.err and "File too large" in outcome.err
    assert status(run) == "failed"
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step-0", "step-12"}
    api.resume(run)
    assert final(run) == expected


# In use, and not empty.


def test_folder_in_use_or_not_empty_is_exit_2(halfway: Path, tmp_path: Path) -> None:
    writer = RunFolder(halfway)
    try:
        outcome = command("resume", halfway)
    finally:
        writer.close()
    assert outcome.code == 2 and str(halfway) in outcome.err
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(TINY))
    for name in ("run.json", "notes.txt"):
        run = tmp_path / name[:-1]
        run.mkdir()
        (run / name).write_text("{}")
        outcome = command("train", config, "--out", run)
        assert outcome.code == 2 and "rlplast resume" in outcome.err
        assert [p.name for p in run.iterdir()] == [name]
