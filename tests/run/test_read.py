"""Reading a run's folder: what stands in the place of a file and is none."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import DamagedFile, RlplastError
from rlplast.run import read
from rlplast.training import checkpoint
from rlplast.training.best import best_checkpoint
from rlplast.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("run.json", lambda folder: read.read_json(folder / "run.json")),
        ("config.yaml", read.read_config),
        ("metrics.jsonl", lambda folder: read.read_lines(folder / "metrics.jsonl")),
        ("metrics.jsonl", RunFolder),
        ("COMPLETE", checkpoint.load),
        ("best.json", best_checkpoint),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_by_name(
    name: str, reader: Callable[[Path], Any], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)  # reading it would wait for a writer for ever
    with pytest.raises(RlplastError, match=name):
        reader(tmp_path)


def test_an_integer_too_long_to_be_a_count_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for digits in (21, 400, 5000):
        path.write_text(
            '{"updates": 18446744073709551616}\n{"updates": ' + "9" * digits + "}\n{}\n"
        )
        with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 2 "):
            read.read_lines(path)
    path.write_text('{"updates": 18446744073709551616}\n')
    assert read.read_lines(path) == [{"updates": 2**64}]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_sealed_file_replaced_by_a_pipe_is_damage(name: str, tmp_path: Path) -> None:
    saved = tmp_path / "step-1"
    checkpoint.save(saved, (1,), {}, {"lr": 1.0})
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(RlplastError, match=f"{name} is no plain file"):
        checkpoint.load(saved)
