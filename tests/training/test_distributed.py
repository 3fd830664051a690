"""One process alone; what several do together is in tests/gpt/test_distributed.py."""

from pathlib import Path

import pytest
import torch

from rlplast.training import distributed
from rlplast.training.distributed import _checksum
from rlplast.training.run_folder import RunFolder


def test_only_torchrun_makes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")  # other launchers set these too
    monkeypatch.setenv("RANK", "3")
    assert (distributed.world(), distributed.rank()) == (1, 0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert (distributed.world(), distributed.rank()) == (4, 3)


def test_other_ranks_have_a_folder_that_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = distributed.open_folder(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    before = {p.name: p.read_bytes() for p in first.path.iterdir() if p.is_file()}
    second = distributed.open_folder(tmp_path / "run")  # which the first has locked
    assert type(first) is RunFolder and second.checkpoints == first.checkpoints
    second.metrics({"updates": 1}, {"train/loss": 1.0})
    second.receipt({"method": "fire"})
    second.cut({"metrics.jsonl": 0})
    second.flush()
    assert second.lengths() == {}
    second.close()
    assert {p.name: p.read_bytes() for p in first.path.iterdir() if p.is_file()} == before
    first.close()


def test_checksum_changes_with_any_bit_and_not_with_the_layout() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
        whole = torch.arange(12).reshape(3, 4).to(dtype)
        assert _checksum(whole.mT) == _checksum(whole)
        other = whole.clone()
        if dtype.is_floating_point:
            other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(99.0, dtype=dtype))
        else:
            other[1, 2] = 0
        assert _checksum(other) != _checksum(whole), dtype
        assert _checksum(torch.zeros(0, dtype=dtype)) == 0
